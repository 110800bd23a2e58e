"""What `skep doctor --url` looks at from another machine: whether a client there finds, trusts and reaches a gateway.

Nothing but what every client may do is done. A token is sent only where the certificate is believed.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from skep.cli.access import Access
from skep.cli.findings import Finding
from skep.tls import client_context
from skep.urls import split_url
from things.errors import BadAddress, SkepError, Unauthenticated, Unavailable
from things.network import is_loopback
from things.service_ids import DIRECTORY

if TYPE_CHECKING:
    import httpx2

ANSWER_S = 5.0
"""How long an address may take."""
CLOCK_S = 30.0
"""By how much two clocks may differ."""
SOON_DAYS = 14
DESCRIPTIONS = 100
"""Of the Things whose descriptions are looked through."""

_PORTS = {"https": 443, "http": 80, "mqtts": 8883, "mqtt": 1883, "wss": 443, "ws": 80}
_MQTT = ("mqtts", "mqtt")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Place:
    """Where a form leads."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(slots=True, kw_only=True)
class _Gateway:
    """A gateway as it is seen from here; what one check learned is there for the next."""

    access: Access
    place: _Place
    addresses: list[str] = field(default_factory=list)
    places: dict[_Place, str] = field(default_factory=dict)
    """Where descriptions send clients, each with one Thing whose description does."""
    brokers: list[_Place] = field(default_factory=list)
    """Where the gateway itself speaks MQTT."""

    @property
    def url(self) -> str:
        return str(self.access.url)


async def checked_from_afar(access: Access) -> list[Finding]:
    """Every check; those that need what an earlier one lacks are left out. Raises BadAddress."""
    parts, port = split_url(str(access.url))
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise BadAddress(f"{access.url!r} is not an address of a runtime; expected https://HOST:PORT")
    place = _Place(scheme=parts.scheme, host=parts.hostname, port=port or _PORTS[parts.scheme])
    gateway = _Gateway(access=access, place=place)
    needed: list[tuple[str, Callable[[_Gateway], Awaitable[str]]]] = [
        ("name", _name),
        (place.scheme, _reach),
        *([("certificate", _certificate)] if place.scheme == "https" else []),
    ]
    others: list[tuple[str, Callable[[_Gateway], Awaitable[str]]]] = [
        ("health", _health),
        ("clock", _clock),
        ("names", _names),
        ("login", _login),
        ("forms", _forms),
        ("mqtt", _mqtt),
    ]
    found: list[Finding] = []
    for name, check in needed:
        found.append(await _finding(gateway, name, check))
        if not found[-1].ok:
            return found
    return found + [await _finding(gateway, name, check) for name, check in others]


async def _finding(gateway: _Gateway, name: str, check: Callable[[_Gateway], Awaitable[str]]) -> Finding:
    try:
        return Finding(check=name, ok=True, detail=await check(gateway))
    except (SkepError, OSError, TimeoutError) as error:
        return Finding(check=name, ok=False, detail=getattr(error, "detail", None) or _said(error))


# ---------------------------------------------------------------- without trust


async def _name(gateway: _Gateway) -> str:
    host = gateway.place.host
    gateway.addresses = await _addresses(gateway.place)
    if gateway.addresses == [host]:
        return f"{host} is an address"
    return f"{host} is {', '.join(gateway.addresses)}"


async def _addresses(place: _Place) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(ANSWER_S):
            found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except TimeoutError as error:
        raise SkepError(f"the name service does not answer for {place.host}") from error
    except OSError as error:
        hint = "; this machine may know no names by mDNS" if place.host.endswith(".local") else ""
        raise SkepError(f"{place.host} is no name that this machine knows{hint}: try the address") from error
    return list(dict.fromkeys(str(one[4][0]) for one in found))


async def _reach(gateway: _Gateway) -> str:
    tries = [_connected(replace(gateway.place, host=address)) for address in gateway.addresses]
    answers = dict(zip(gateway.addresses, await asyncio.gather(*tries), strict=True))
    silent = {address: problem for address, problem in answers.items() if problem is not None}
    said = "; ".join(f"{address}: {problem}" for address, problem in silent.items())
    if len(silent) == len(answers):
        raise SkepError(f"port {gateway.place.port}: {said}")
    if silent:
        raise SkepError(f"clients may try an address first that does not answer: {said}")
    return f"port {gateway.place.port} answers"


async def _connected(place: _Place, context: ssl.SSLContext | None = None) -> str | None:
    """Why a place does not answer; None if it does."""
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(place.host, place.port, ssl=context)
    except (OSError, TimeoutError) as error:
        return _said(error)
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            await writer.wait_closed()
    return None


def _said(error: BaseException) -> str:
    match error:
        case ConnectionRefusedError():
            return "nothing listens there; skep listens on the network only where http.https and mqtt.mqtts say so"
        case TimeoutError():
            return f"no answer in {ANSWER_S:.0f} s: a firewall, or another network"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not believed: {error.verify_message}"
        case ssl.SSLError():
            return f"no TLS is spoken there ({error.reason})"
        case OSError():
            return error.strerror or str(error)
        case _:
            return str(error)


# ---------------------------------------------------------------- trust

_UNKNOWN_ISSUER = (18, 19, 20, 21)
_OTHER_NAME = (62, 64)
_ENDED, _NOT_YET = 10, 9
"""X509_V_ERR_… of OpenSSL's x509_vfy.h."""


async def _certificate(gateway: _Gateway) -> str:
    from cryptography import x509

    place = gateway.place
    shown = x509.load_der_x509_certificate(await _shown(place))
    until = shown.not_valid_after_utc
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(place.host, place.port, ssl=client_context(gateway.access.ca))
            writer.close()
    except ssl.SSLCertVerificationError as error:
        raise SkepError(_disbelieved(gateway, error, shown)) from error
    days = (until - datetime.now(UTC)).days
    if days < SOON_DAYS:
        raise SkepError(f"it ends in {days} days, on {until:%Y-%m-%d}")
    by = "this machine's authorities" if gateway.access.ca is None else str(gateway.access.ca)
    return f"for {place.host}, by {by}, valid for {days} more days"


async def _shown(place: _Place) -> bytes:
    """The certificate of a server, whatever it is worth; nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with asyncio.timeout(ANSWER_S):
        _, writer = await asyncio.open_connection(place.host, place.port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return bytes(shown)


def _disbelieved(gateway: _Gateway, error: ssl.SSLCertVerificationError, shown: Any) -> str:
    place = gateway.place
    if error.verify_code in _UNKNOWN_ISSUER:
        if gateway.access.ca is not None:
            return f"{gateway.access.ca} is not of the authority that signed it: another gateway answers, or it is new"
        return f"its authority is not known here: skep login {gateway.url}, or --ca with the gateway's /ca.pem"
    if error.verify_code in _OTHER_NAME:
        names = ", ".join(_names_of(shown)) or "no name"
        return f"it is for {names}, not for {place.host}: add that to gateway.names, or use an own certificate for it"
    if error.verify_code == _ENDED:
        return f"it ended on {shown.not_valid_after_utc:%Y-%m-%d}, or this machine's clock is ahead"
    if error.verify_code == _NOT_YET:
        return f"it begins on {shown.not_valid_before_utc:%Y-%m-%d}: is this machine's clock behind?"
    return error.verify_message


def _names_of(shown: Any) -> list[str]:
    from cryptography import x509

    try:
        carried = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(one.value) for one in carried]


# ---------------------------------------------------------------- as anybody


async def _asked(gateway: _Gateway, path: str) -> "httpx2.Response":
    """What anybody is answered, refusals too."""
    import httpx2

    verify = client_context(gateway.access.ca) if gateway.place.scheme == "https" else False
    try:
        async with httpx2.AsyncClient(base_url=gateway.url, verify=verify, timeout=ANSWER_S, trust_env=False) as client:
            return await client.get(path)
    except httpx2.TransportError as error:
        raise Unavailable(f"{path} is not answered: {error}") from error


def _document(response: "httpx2.Response") -> Mapping[str, Any]:
    try:
        found = response.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SkepError(f"{response.url.path} is answered by {response.status_code}, and not by skep")
    return found


async def _health(gateway: _Gateway) -> str:
    body = _document(await _asked(gateway, "/readyz"))
    said = [f"{name}: {text}" for part in ("reasons", "warnings") for name, text in body.get(part, {}).items()]
    if said:
        raise SkepError("; ".join(said))
    return "ready, without warnings"


async def _clock(gateway: _Gateway) -> str:
    before = time.time()
    response = await _asked(gateway, "/livez")
    after = time.time()
    try:
        theirs = parsedate_to_datetime(response.headers.get("date", "")).timestamp()
    except ValueError:
        return "the gateway does not tell its time"
    # It tells whole seconds.
    ahead = max(theirs - after, min(0.0, theirs + 1 - before))
    if abs(ahead) > CLOCK_S:
        raise SkepError(
            f"the gateway's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's:"
            " tokens and certificates may be refused, and times of values differ"
        )
    return f"the same as this machine's, to {max(1.0, abs(ahead)):.0f} s"


async def _names(gateway: _Gateway) -> str:
    td = _document(await _asked(gateway, "/.well-known/wot"))
    gateway.places |= dict.fromkeys(_places(td), "its own description")
    own = sorted({place for place in gateway.places if place.scheme in ("https", "http")})
    if own and gateway.place not in own:
        raise SkepError(
            f"the gateway does not know itself as {gateway.place}, and sends clients to {own[0]}: add the name to"
            " gateway.names, or set gateway.public_url where a proxy stands before it"
        )
    return f"the gateway knows itself as {gateway.place}"


# ---------------------------------------------------------------- as an account


async def _login(gateway: _Gateway) -> str:
    access = gateway.access
    if access.token is None and access.kept is None:
        return f"none here, so that only public descriptions are looked at: skep login {gateway.url}, or --token"
    try:
        async with access.opened() as consumer:
            own = await consumer.thing(DIRECTORY).describe()
            page = await consumer.call(DIRECTORY, "listTDs", {"limit": DESCRIPTIONS})
    except Unauthenticated as error:
        raise SkepError(f"the token is not taken: {error.detail}") from error
    gateway.brokers = sorted({place for place in _places(own) if place.scheme in _MQTT})
    items = page.get("items") if isinstance(page, dict) else None
    seen = [one for one in items or () if isinstance(one, Mapping)] if isinstance(items, list) else []
    for td in seen:
        for place in _places(td):
            gateway.places.setdefault(place, str(td.get("id")))
    return f"taken; {len(seen)} descriptions are seen"


async def _forms(gateway: _Gateway) -> str:
    is_far = not all(is_loopback(address) for address in gateway.addresses)
    bad = []
    for place, thing in sorted(gateway.places.items()):
        try:
            addresses = await _addresses(place)
        except SkepError as error:
            bad.append(f"{place} ({thing}): {error.detail}")
            continue
        if is_far and all(is_loopback(address) for address in addresses):
            bad.append(f"{place} ({thing}) leads to this machine itself")
    if bad:
        raise SkepError("; ".join(bad))
    return f"lead to {', '.join(sorted({place.host for place in gateway.places}))}"


async def _mqtt(gateway: _Gateway) -> str:
    if not gateway.brokers:
        return "not offered in what is seen here"
    bad = []
    for place in gateway.brokers:
        context = client_context(gateway.access.ca) if place.scheme == "mqtts" else None
        problem = await _connected(place, context)
        if problem is not None:
            bad.append(f"{place}: {problem}")
    if bad:
        raise SkepError("; ".join(bad))
    return f"answered at {', '.join(map(str, gateway.brokers))}"


def _places(document: object) -> Iterator[_Place]:
    """Where the forms of a description lead, its base first; what is relative leads to the gateway."""
    if isinstance(document, Mapping):
        for name in ("base", "href"):
            place = _place(document.get(name))
            if place is not None:
                yield place
        for value in document.values():
            yield from _places(value)
    elif isinstance(document, list):
        for value in document:
            yield from _places(value)


def _place(text: object) -> _Place | None:
    if not isinstance(text, str):
        return None
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname or "{" in parts.netloc:
        return None
    return _Place(scheme=parts.scheme, host=parts.hostname, port=port or _PORTS[parts.scheme])
