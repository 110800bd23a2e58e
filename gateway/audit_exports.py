"""Exports of an audit log, which are verified without the gateway."""

import csv
import io
from pathlib import Path

from authn.audit import public_key, read_anchors, verify_lines
from authn.documents import verdict_document
from things.messages import JSONValue


def verified_export(path: Path, *, key: str | None, anchors: Path | None) -> dict[str, JSONValue]:
    """What `verifyAudit` answers, of an export as JSON lines or CSV. `key`: who must have signed it; `anchors`: a file
    among whose lines are what witnesses were told. Raises Invalid, OSError."""
    if key is not None:
        public_key(key)
    content = path.read_bytes()
    lines = content.splitlines()
    if content.startswith(b"seq,"):
        lines = [
            (row.get("line") or "").encode() for row in csv.DictReader(io.StringIO(content.decode("utf-8", "replace")))
        ]
    known = read_anchors(anchors.read_bytes().splitlines()) if anchors else []
    return verdict_document(verify_lines(path.name, lines, key=key, anchors=known))
