"""What a check of `skep doctor` has found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check: whether it is well, and what was seen."""

    check: str
    ok: bool
    detail: str
