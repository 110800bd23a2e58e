"""Whether a row that was read from a damaged store can be what was written: words that are known, JSON that is JSON.

A row of which a bit flipped within a text or a number passes: nothing says what stood there.
"""

from collections.abc import Collection, Mapping

from pydantic_core import from_json

from authn.credentials import CredentialKind
from gateway.repair.pages import Field
from things.addresses import Kind
from things.delivery import Reason, State
from things.identity import AccountType
from things.messages import Operation

_WORDS: Mapping[tuple[str, str], Collection[str]] = {
    ("accounts", "type"): {str(one) for one in AccountType},
    ("credentials", "kind"): {str(one) for one in CredentialKind},
    ("keys", "kind"): {str(one) for one in Kind},
    ("latest", "kind"): {str(one) for one in Kind},
    ("requests", "operation"): {str(one) for one in Operation},
    ("requests", "state"): {str(one) for one in State},
    ("transitions", "state"): {str(one) for one in State},
    ("transitions", "reason"): {str(one) for one in Reason},
}
_JSON = {
    *(("entries", one) for one in ("overlay",)),
    *(("td_versions", one) for one in ("td", "types")),
    ("latest", "value"),
    *(("requests", one) for one in ("input", "authority")),
    ("transitions", "output"),
    ("changes", "patch"),
    ("rows", "value"),
}


def is_sound(table: str, row: Mapping[str, Field]) -> bool:
    """Whether a row of a store can be what was written."""
    return all(value is None or _is_sound(table, column, value) for column, value in row.items())


def _is_sound(table: str, column: str, value: Field) -> bool:
    if (words := _WORDS.get((table, column))) is not None:
        return value in words
    if (table, column) in _JSON and isinstance(value, str | bytes):
        try:
            from_json(value)
        except ValueError:
            return False
    return True
