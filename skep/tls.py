"""TLS as clients use it: TLS 1.2 or newer, the runtime's own CA or the system's."""

import ssl
from pathlib import Path

from things.errors import Unavailable


def client_context(ca: str | Path | None = None, *, pem: str | None = None) -> ssl.SSLContext:
    """A verifying context: `ca` is the runtime's CA file, or `pem` its content; without either, the system's are
    trusted. Raises Unavailable."""
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca), cadata=pem)
    except (OSError, ssl.SSLError) as error:
        raise Unavailable(f"cannot read the CA certificate {ca}: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
