"""Patterns over ids and names: plain text in which `*` stands for any characters, none included.

Matching takes time in proportion to the text; nothing a user writes is run as a regular expression.
"""

from dataclasses import dataclass

from things.errors import Invalid

MAX_CHARS = 256
MAX_STARS = 8


@dataclass(frozen=True, slots=True)
class RulePattern:
    """One pattern; made by `parse`."""

    text: str

    @property
    def is_exact(self) -> bool:
        return "*" not in self.text

    def matches(self, text: str) -> bool:
        first, *rest = self.text.split("*")
        if not rest:
            return text == first
        *middle, last = rest
        if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
            return False
        place, end = len(first), len(text) - len(last)
        for part in middle:
            found = text.find(part, place, end)
            if found < 0:
                return False
            place = found + len(part)
        return True

    def could_begin(self, text: str) -> bool:
        """Whether anything that matches could begin with `text`."""
        head, star, _ = self.text.partition("*")
        return head.startswith(text) or (bool(star) and text.startswith(head))

    @staticmethod
    def parse(text: object) -> "RulePattern":
        """Raises Invalid for what no id or name could match."""
        if not isinstance(text, str) or not text or len(text) > MAX_CHARS:
            raise Invalid(f"a pattern is text of 1 to {MAX_CHARS} characters")
        if text.count("*") > MAX_STARS:
            raise Invalid(f"a pattern holds at most {MAX_STARS} stars")
        if not text.isprintable():
            raise Invalid("a pattern holds no control characters")
        return RulePattern(text)

    def __str__(self) -> str:
        return self.text
