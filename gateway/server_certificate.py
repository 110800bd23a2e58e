"""The certificate that a runtime shows: its owner's own, if there is one, else that of the local authority.

The owner's is watched while a runtime runs: another one is shown to new connections as soon as both of its files are
there. One that cannot be served is refused, said, and looked at again when its files change.
"""

import logging
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.to_thread

from authn.audit import Audit
from authn.certificates import Certificates
from authn.served import ServerFiles, read_pair
from gateway.config import Config
from things.errors import ConfigInvalid, SkepError

log = logging.getLogger(__name__)

EVERY_S = 2.0


def own_certificate(config: Config) -> ServerFiles | None:
    """Where the owner's certificate lies; None where the local authority makes one. Raises ConfigInvalid for one of the
    two alone; the configuration takes that, since `skep config set` sets one after the other."""
    certificate, key = config.security.certificate, config.security.certificate_key
    if bool(certificate) != bool(key):
        raise ConfigInvalid("security.certificate and security.certificate_key go together")
    return ServerFiles(certificate=Path(certificate), key=Path(key)) if certificate and key else None


def lying(home: Path, config: Config) -> tuple[Path, datetime] | None:
    """The file of the certificate that a start would show, and when it ends; None where one is made then. Raises
    ConfigInvalid for one that cannot be shown."""
    own, folder = own_certificate(config), home / "certs"
    files = own or ServerFiles(certificate=folder / "server.pem", key=folder / "server.key")
    if own is None and not files.certificate.exists():
        return None
    return files.certificate, read_pair(files, now=datetime.now(UTC)).certificate.not_valid_after_utc


async def serve(certificates: Certificates, audit: Audit) -> None:
    """Watch until cancelled; returns at once where there is nothing to watch."""
    while certificates.is_own:
        await anyio.sleep(EVERY_S)
        if not await anyio.to_thread.run_sync(certificates.has_changed):
            continue
        try:
            await anyio.to_thread.run_sync(certificates.read)
        except SkepError as error:
            log.error("another certificate is not served", extra={"detail": error.detail})
            audit.record("reloaded", by="skep", details={"failed": f"certificates: {error.detail}"})
        else:
            certificates.serve()
            log.info("another certificate is served", extra={"until": certificates.expires().isoformat()})
            audit.record("reloaded", by="skep", details={"certificate": certificates.expires().isoformat()})
