"""The nearest known name to one that is not known, as the end of a sentence."""

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'flow'?`, or nothing where no known name is near."""
    candidates = [*known]
    if not candidates:
        return ""
    # Imported here: most programs never misspell anything, and commands start without it.
    from difflib import get_close_matches

    near = get_close_matches(name[:128], candidates, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
