"""Whose word is taken about where a request came from, and how much of it."""

from typing import Any

import pytest

from bindings.web.connections import Connections
from bindings.web.credentials import is_loopback_only, source_of
from bindings.web.fields import Fields
from bindings.web.limits import ConnectionLimits
from bindings.web.proxies import MAX_HOPS, ProxiedRequests, TrustedProxies
from things.errors import ConfigInvalid
from things.network import checked_networks

pytestmark = pytest.mark.anyio

PROXY, OTHER_PROXY, STRANGER = "10.0.0.1", "10.0.0.2", "192.0.2.66"
PROXIES = TrustedProxies(checked_networks(["10.0.0.0/24", "fd00::/8", "127.0.0.1"]))


async def shown(peer: str | None, scheme: str = "http", **said: str) -> dict[str, Any]:
    """The scope that an application is shown."""
    found: list[Any] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        found.append(scope)

    headers = [(b"host", b"inner:8080")]
    headers += [(f"x-forwarded-{name}".encode(), text.encode("latin-1")) for name, text in said.items()]
    scope = {
        "type": "websocket" if scheme.startswith("ws") else "http",
        "scheme": scheme,
        "headers": headers,
        "client": None if peer is None else (peer, 4_711),
        "server": ("127.0.0.1", 8_080),
        "state": {"loopback": True},
    }
    await ProxiedRequests(app, PROXIES)(scope, None, None)  # type: ignore[arg-type]
    (one,) = found
    return dict(one)


@pytest.mark.parametrize(
    ("peer", "said", "source"),
    [
        (PROXY, "198.51.100.7", "198.51.100.7"),
        (PROXY, " 203.0.113.9 , 198.51.100.7 ", "198.51.100.7"),  # the first is the client's own invention
        (PROXY, f"198.51.100.7, {OTHER_PROXY}", "198.51.100.7"),
        (PROXY, f"{OTHER_PROXY}, {PROXY}", OTHER_PROXY),
        (PROXY, "198.51.100.7:4711", "198.51.100.7"),
        (PROXY, "2001:db8::7", "2001:db8::7"),
        (PROXY, "[2001:DB8::7]:4711", "2001:db8::7"),
        (PROXY, "::ffff:198.51.100.7", "198.51.100.7"),
        ("fd00::1", "198.51.100.7", "198.51.100.7"),
        ("::ffff:10.0.0.1", "198.51.100.7", "198.51.100.7"),
        (PROXY, "unknown", PROXY),
        (PROXY, "198.51.100.7, _hidden", PROXY),
        (PROXY, f"nobody, {OTHER_PROXY}", OTHER_PROXY),
        (PROXY, "", PROXY),
        (PROXY, "localhost", PROXY),
        (PROXY, "198.51.100.7, 198.51.100.8,", PROXY),
        (PROXY, ", ".join(["198.51.100.7", *[OTHER_PROXY] * MAX_HOPS]), OTHER_PROXY),
        (PROXY, "a," * 30_000 + "198.51.100.7", "198.51.100.7"),
        (STRANGER, "127.0.0.1", STRANGER),
        (STRANGER, PROXY, STRANGER),
        ("127.0.0.2", "198.51.100.7", "127.0.0.2"),
    ],
)
async def test_source_is_the_nearest_hop_that_is_no_trusted_proxy(peer: str, said: str, source: str) -> None:
    assert source_of(await shown(peer, **{"for": said})) == source


async def test_a_client_s_own_field_in_front_of_the_proxy_s_is_no_source() -> None:
    scope = await shown(PROXY, **{"for": "203.0.113.9"})
    scope["headers"].append((b"x-forwarded-for", b"198.51.100.7"))
    scope["client"] = (PROXY, 1)

    async def app(again: Any, _receive: Any, _send: Any) -> None:
        assert source_of(again) == "198.51.100.7"

    await ProxiedRequests(app, PROXIES)(scope, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("came", "said", "scheme"),
    [
        ("http", "https", "https"),
        ("https", "http", "http"),
        ("ws", "https", "wss"),
        ("wss", "http", "ws"),
        ("http", "HTTPS", "https"),
        ("http", "https, http", "http"),
        ("http", "javascript", "http"),
        ("http", "", "http"),
    ],
)
async def test_scheme_is_the_one_the_proxy_was_asked_by(came: str, said: str, scheme: str) -> None:
    assert (await shown(PROXY, came, proto=said))["scheme"] == scheme
    assert (await shown(STRANGER, came, proto=said))["scheme"] == came
    assert (await shown(None, came, proto=said))["scheme"] == came


@pytest.mark.parametrize(
    ("said", "host"),
    [
        ("panel.example", "panel.example"),
        ("panel.example:8443", "panel.example:8443"),
        ("[2001:db8::7]:8443", "[2001:db8::7]:8443"),
        ("panel.example, evil.example", "inner:8080"),
        ("panel.example/x", "inner:8080"),
        ("panel\xe9", "inner:8080"),
        ("", "inner:8080"),
    ],
)
async def test_host_is_the_one_the_proxy_was_asked_for(said: str, host: str) -> None:
    for peer, seen in ((PROXY, host), (STRANGER, "inner:8080"), (None, "inner:8080")):
        fields = Fields((await shown(peer, host=said))["headers"])
        assert fields.get("host") == seen


async def test_nobody_becomes_a_program_of_this_machine_by_what_a_proxy_says() -> None:
    scope = await shown("127.0.0.1", **{"for": "127.0.0.1", "host": "localhost"})

    assert source_of(scope) == "127.0.0.1"
    assert not is_loopback_only(scope, Fields(scope["headers"]))


def test_connections_of_a_trusted_proxy_are_not_counted_by_source() -> None:
    limits = ConnectionLimits(
        max_connections=5, max_connections_per_source=2, trusted_proxies=checked_networks([PROXY])
    )
    connections = Connections(limits)
    for source, admitted in ((PROXY, 4), (STRANGER, 2)):
        for _ in range(admitted):
            assert connections.admit(source)
            connections.opened(source)
        if source == STRANGER:
            assert not connections.admit(source)
        for _ in range(admitted):
            connections.closed(source)


@pytest.mark.parametrize("text", ["0.0.0.0/0", "::/0", "10.0.0.1/8", "panel.example", "", "10.0.0.0/33"])
def test_what_is_no_network_or_everybody_is_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid):
        checked_networks([text])
