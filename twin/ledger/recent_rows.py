"""Requests as the writer thread last wrote them, so that it need not read what it has just written."""

from typing import Any

from things.bounded import Recent

_MOST = 500
_LONGEST_INPUT = 1_024
"""Characters of an input; longer ones are read again, so that few requests cannot hold much memory."""


class Standing:
    """Columns of open requests by id; the one that was written longest ago is forgotten first."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known = Recent[str, dict[str, Any]](_MOST)

    def get(self, request_id: str) -> dict[str, Any] | None:
        """The request as it stands; None if that is not known here."""
        return self._known.get(request_id)

    def keep(self, fields: dict[str, Any]) -> None:
        """A request was opened, or has taken a step that is not its last."""
        known, given = self._known, fields["input"]
        if given is None or len(given) <= _LONGEST_INPUT:
            known[fields["request_id"]] = fields
        else:
            known.pop(fields["request_id"], None)

    def drop(self, request_id: str) -> None:
        """It has ended."""
        self._known.pop(request_id, None)

    def clear(self) -> None:
        """What was written last was undone."""
        self._known.clear()
