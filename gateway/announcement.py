"""What `skep run` prints when it is up: where it listens, whom to trust, and how it is claimed."""

import io
from collections.abc import Iterator
from urllib.parse import urlsplit

from gateway.running import Running
from things.network import is_loopback


def addresses(running: Running) -> Iterator[str]:
    """A line for each listener."""
    for name in ("https", "http", "mqtts", "mqtt"):
        address = getattr(running, name)
        if address:
            yield f"{name:6} {address}"


def invitation(running: Running, *, draws: bool) -> Iterator[str]:
    """Whom to trust and, as long as nobody has claimed the runtime, how it is done. `draws`: the link as a QR code too,
    where it leads here from another machine."""
    page = running.https or running.http
    if running.https and not running.certificates.is_own:
        yield f"trust  {running.https}/ca  (SHA-256 {running.certificates.fingerprint().upper()})"
    code = running.stores.authenticator.claim_code.code
    if not code:
        return
    yield f"claim  {code}  (one time: makes the first admin; also in {running.stores.home / 'claim'})"
    if page is None:
        return
    link = f"{page}/#claim={code}"
    yield f"       {link}"
    if draws and not is_loopback(urlsplit(page).hostname or ""):
        yield qr_code(link)


def qr_code(text: str) -> str:
    """A QR code (ISO/IEC 18004) of half blocks, for a terminal."""
    import segno  # only until a gateway is claimed, and only on a terminal

    drawn = io.StringIO()
    segno.make(text, error="l", micro=False).terminal(drawn, compact=True)
    return drawn.getvalue().rstrip("\n")
