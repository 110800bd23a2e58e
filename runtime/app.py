"""The composition root: the only module that knows every room.

`run` is the whole life of a `skep run` process; `started` is the same for tests and for programs that embed skep.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from authn.authenticator import LocalAuthenticator
from authz.authorizer import RoleAuthorizer
from runtime.core import Runtime
from twin.store import Twin

log = logging.getLogger(__name__)

READY_VERSION = 1
SHUTDOWN_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A started runtime: its parts, and the addresses it listens on (None = off)."""

    home: Path
    runtime: Runtime
    authenticator: LocalAuthenticator
    authorizer: RoleAuthorizer
    twin: Twin
    http: str | None
    https: str | None
    mqtt: str | None
    mqtts: str | None
    ca: str | None

    def ready_document(self) -> dict[str, str | int | None]:
        """What the ready file says."""
        return {
            "pid": os.getpid(),
            "http": self.http,
            "https": self.https,
            "mqtt": self.mqtt,
            "mqtts": self.mqtts,
            "ca": self.ca,
        }
