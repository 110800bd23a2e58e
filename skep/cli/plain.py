"""Text of others on a terminal."""

from unicodedata import category

_JOINERS = "\u200c\u200d"
"""Format characters that some scripts need within words."""


def plain(text: str) -> str:
    """Text of others for a terminal: what would move the cursor, colour the line or turn its direction is spelled."""
    return "".join(character if _is_harmless(character) else ascii(character)[1:-1] for character in text)


def _is_harmless(character: str) -> bool:
    return character in _JOINERS or category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
