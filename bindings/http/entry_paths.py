"""Paths of directory entries as clients join them: they put what `Location` said behind `/things/`, as it is."""

import re

from starlette.types import Scope

_COLLECTION = b"/things/"
_JOINED = re.compile(rb"/things/(?:https?://(?P<host>[^/]+))?/things/(?P<entry>.+)")


def entry_path(scope: Scope) -> bytes:
    """The raw path of a request; that of the entry itself, where a location of ours was put behind `/things/`."""
    path: bytes = scope["raw_path"]
    if not path.startswith(_COLLECTION) or _COLLECTION not in path[len(_COLLECTION) - 1 :]:
        return path
    joined = _JOINED.fullmatch(path)
    if joined is None:
        return path
    host = joined["host"]
    if host is not None and host != next((value for name, value in scope["headers"] if name == b"host"), None):
        return path
    return _COLLECTION + joined["entry"]
