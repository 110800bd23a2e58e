"""Records that are made for every message: frozen for the type checker, plain at run time.

A run-time freeze sets every field through `object.__setattr__`, which makes a record of a dozen fields three times as
slow to make; several are made for each message. mypy refuses an assignment to these exactly as to a frozen dataclass.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A dataclass with slots and keyword-only fields that nobody changes after it was made."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)
