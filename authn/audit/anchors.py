"""Anchors: how far each class of the log has come, signed, and given to somebody outside the log's folder.

Whoever can write to the folder and holds the key can make a chain that fits in itself; it does not fit what a witness
was told before. A witness is a file elsewhere (another disk, a share), or syslog, and with it whatever collects it. One
more, `keys/audit-head.json`, is in every installation: it finds out who could write to the folder only, and accidents.

An anchor is one line of JSON: `{"v","gateway","at","log","heads","key","sig"}`; `heads` has by class the number of the
last line, its SHA-256, and the number of the first. Where something stands before it, as syslog writes it, that is
passed over.
"""

import json
import logging
import logging.handlers
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from authn.audit.acts import Class, text
from authn.audit.chain import Head, sealed, unsealed
from authn.audit.signing import ANCHOR, Signer
from things.errors import ConfigInvalid
from things.times import rfc3339
from things.whole_files import write_whole

MAX_WITNESS_BYTES = 16 << 20
"""A witness file is begun anew above this, if its folder lets us; the one before stays as `.1`."""
STOP_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """One anchor; `body` and `signature` are what was signed, and by whom is `key`."""

    gateway: str
    at: str
    log: str
    heads: Mapping[Class, Head]
    key: str
    body: bytes
    signature: str


class Witness(Protocol):
    """Keeps anchors outside the log's folder. Called in a thread of its own, which may be held up."""

    @property
    def name(self) -> str: ...

    def tell(self, anchor: bytes) -> None:
        """Keep a line without its newline. Raises OSError."""
        ...

    def anchors(self) -> list[Anchor]:
        """Those that can be read back here. Raises OSError."""
        ...


@dataclass(frozen=True, slots=True)
class WitnessFile:
    """Lines appended to a file; a folder that lets nobody change what is there (`chattr +a`, a share that keeps
    versions) makes it proof against the gateway's own owner."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def tell(self, anchor: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(anchor + b"\n")
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        if size > MAX_WITNESS_BYTES:
            try:
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            except OSError as error:
                log.debug("the witness file goes on growing", extra={"detail": str(error)})

    def anchors(self) -> list[Anchor]:
        found: list[Anchor] = []
        for path in (self.path.with_name(f"{self.path.name}.1"), self.path):
            if path.exists():
                found += read_anchors(path.read_bytes().splitlines())
        return found


@dataclass(frozen=True, slots=True)
class HeadFile:
    """The latest anchor alone, in a file that is replaced."""

    path: Path
    name: str = "head"

    def tell(self, anchor: bytes) -> None:
        write_whole(self.path, anchor + b"\n")

    def anchors(self) -> list[Anchor]:
        try:
            return read_anchors(self.path.read_bytes().splitlines())
        except FileNotFoundError:
            return []


class _Sender(logging.handlers.SysLogHandler):
    """Says so where a line could not be sent."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        raise


class Syslog:
    """The syslog of this machine (a path such as /dev/log) or of another (HOST:PORT, by UDP): facility authpriv,
    severity notice, program `skep-audit`. What it keeps is read by its own means."""

    def __init__(self, address: str) -> None:
        """Raises ConfigInvalid."""
        self.name = f"syslog {address}"
        host, colon, port = address.rpartition(":")
        if not address.startswith("/") and not (colon and host and port.isdigit()):
            raise ConfigInvalid(f"audit.syslog: {address!r} is neither a path nor HOST:PORT")
        self._address: str | tuple[str, int] = (
            address if address.startswith("/") else (host.removeprefix("[").removesuffix("]"), int(port))
        )
        self._sender: _Sender | None = None

    def tell(self, anchor: bytes) -> None:
        if self._sender is None:
            self._sender = _Sender(self._address, logging.handlers.SysLogHandler.LOG_AUTHPRIV, socket.SOCK_DGRAM)
            self._sender.ident = "skep-audit: "
            self._sender.append_nul = False
        record = logging.LogRecord(__name__, logging.INFO, __file__, 0, anchor.decode(), None, None)
        try:
            self._sender.emit(record)
        except OSError:
            self._sender.close()
            self._sender = None
            raise

    def anchors(self) -> list[Anchor]:
        return []


def anchor_line(signer: Signer, *, gateway: str, at: int, log_id: str, heads: Mapping[Class, Head]) -> bytes:
    """A signed anchor; `at` in µs UTC."""
    body = text(
        {
            "v": 1,
            "gateway": gateway,
            "at": rfc3339(at),
            "log": log_id,
            "heads": {str(class_): [head.seq, head.line, head.first] for class_, head in heads.items()},
            "key": signer.public,
        }
    ).encode()
    return sealed(body, signer.signature(ANCHOR, body))


def read_anchors(lines: Iterable[bytes]) -> list[Anchor]:
    """The anchors among lines of any kind, in their order. Signatures are for `verify` to look at."""
    return [found for line in lines if (found := _anchor(line.strip())) is not None]


def _anchor(line: bytes) -> Anchor | None:
    start = line.find(b'{"v":1,"gateway":')
    parts = unsealed(line[start:]) if start >= 0 else None
    if parts is None:
        return None
    try:
        found = json.loads(parts[0])
        heads = {
            Class(name): Head(int(seq), str(digest), int(first))
            for name, (seq, digest, first) in found["heads"].items()
        }
        return Anchor(
            gateway=str(found["gateway"]),
            at=str(found["at"]),
            log=str(found["log"]),
            heads=heads,
            key=str(found["key"]),
            body=parts[0],
            signature=parts[1],
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class Anchoring:
    """Tells witnesses, in a thread of its own: a share that hangs holds up nobody. Of what came meanwhile only the
    latest counts."""

    def __init__(self, witnesses: Iterable[Witness], said: Callable[[str | None], None]) -> None:
        """`said`: a witness cannot be told, and which; None once all can."""
        self._witnesses = tuple(witnesses)
        self._said = said
        self._wake = threading.Condition()
        self._next: bytes | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="audit-anchors", daemon=True)
        self._thread.start()

    def tell(self, anchor: bytes) -> None:
        """Returns at once."""
        with self._wake:
            self._next = anchor
            self._wake.notify_all()

    def close(self) -> None:
        """Tell the last one, if that takes no longer than a moment."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        failed: set[str] = set()
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._next is not None or self._stopped)
                anchor, self._next = self._next, None
                if anchor is None:
                    return
            for witness in self._witnesses:
                try:
                    witness.tell(anchor)
                except OSError as error:
                    if witness.name not in failed:
                        log.warning("a witness cannot be told", extra={"witness": witness.name, "detail": str(error)})
                    failed.add(witness.name)
                else:
                    failed.discard(witness.name)
            self._said(f"cannot be told: {', '.join(sorted(failed))}" if failed else None)
