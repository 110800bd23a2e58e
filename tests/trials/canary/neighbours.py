"""Hostile neighbours of a gateway, as a table: where each knocks, what it says first, and what it says over and over.

Run as a program, it plays the kinds that it is told on its standard input, one after the other, at a low priority:
in a home they are on another machine and take no processor time from the gateway but by what they send.
"""

import asyncio
import base64
import json
import os
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.bindings.mqtt import wire

PASSWORD = "the canary sings at 7"
AGAIN_S = 0.01
"""Until a connection that was closed is opened again."""
AHEAD_BYTES = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the gateway listens, and tokens by account."""

    doors: Mapping[str, tuple[str, int]]
    tokens: Mapping[str, str]

    @staticmethod
    def read(path: Path) -> "Site":
        found = json.loads(path.read_bytes())
        return Site(doors={name: tuple(one) for name, one in found["doors"].items()}, tokens=found["tokens"])

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"doors": self.doors, "tokens": self.tokens}), "utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """One kind. `first` is said on each connection, `again` as often as it is taken; without it the connection is held
    open. `reads`: takes what it is answered. `anew`: a connection for each."""

    door: str
    first: bytes = b""
    again: bytes = b""
    connections: int = 1
    reads: bool = True
    anew: bool = False


def neighbours(tokens: Mapping[str, str]) -> dict[str, Neighbour]:
    """All kinds, by name."""
    return {**_strangers(), **_over_tls(), **_by_mqtt(tokens), **_by_http(tokens)}


def _strangers() -> dict[str, Neighbour]:
    devices = b"".join(_post("/authn/provision", b'{"clientID":"d%d","publicKey":"x"}' % n) for n in range(200))
    names = b"".join(b"%x:\r\n" % number for number in range(9_000))
    login = b'{"login":"bob","password":"wrong"}'
    head = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n"
    return {
        "a head with 9,000 names": Neighbour(door="http", first=head + names + b"1:\r\n\r\n", anew=True),
        "a head that never ends": Neighbour(door="http", first=head, again=b"a: b\r\n"),
        "silent connections, HTTP": Neighbour(door="http", connections=400),
        "heads that stay unfinished": Neighbour(door="http", first=head, connections=300),
        "bodies that stay unfinished": Neighbour(
            door="http", first=_post("/authn/login", b"{", length=60_000), connections=300
        ),
        "requests sent ahead": Neighbour(door="http", again=(head + b"\r\n") * 100, connections=4),
        "wrong passwords, HTTP": Neighbour(door="http", again=_post("/authn/login", login), connections=8),
        "devices that ask for a token": Neighbour(door="http", again=devices, connections=2),
        "refused upgrades": Neighbour(door="http", first=_upgrade("/mqtt", "mqtt"), anew=True, connections=8),
        "silent connections, MQTT": Neighbour(door="mqtt", connections=600),
        "a CONNECT without its last byte": Neighbour(
            door="mqtt", first=wire.connect("x", "bob", "y" * 12_000)[:-1], connections=400
        ),
        "wrong passwords, MQTT": Neighbour(
            door="mqtt", first=wire.connect("x", "bob", "wrong"), anew=True, connections=8
        ),
        "no MQTT at all": Neighbour(door="mqtt", first=b"\xff" * 4_096, anew=True, connections=8),
    }


def _over_tls() -> dict[str, Neighbour]:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    return {
        "handshakes that stay half done, HTTPS": Neighbour(door="raw https", first=hello, connections=300),
        "handshakes that stay half done, MQTTS": Neighbour(door="raw mqtts", first=hello, connections=300),
        "no TLS at all": Neighbour(door="raw https", first=b"\x15" * 4_096, anew=True, connections=8),
        "handshakes in a loop": Neighbour(door="https", first=b"\r\n", anew=True, connections=4),
        "requests sent ahead, TLS": Neighbour(
            door="https", again=b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100, connections=2
        ),
    }


def _by_mqtt(tokens: Mapping[str, str]) -> dict[str, Neighbour]:
    def of(account: str, again: bytes, **given: Any) -> Neighbour:
        first = wire.connect(f"neighbour-{account}", account, tokens[account])
        return Neighbour(door="mqtt", first=first, again=again, **given)

    event, other = "agents/noise/event/lamp/tick", "agents/canary/event/bird/chirp"
    listen = wire.subscribe(1, ("things/#", 0))
    value = b'"%s"' % (b"y" * 700)
    unknown = b"".join(wire.publish(f"agents/noise/property/lamp/n{n}-{'x' * 90}", value) for n in range(500))
    action = wire.publish("req/bob/action/noise/lamp/switch/x", b"1", qos=1)
    deaf = wire.connect("deaf", "bob", tokens["bob"]) + listen
    return {
        "events without guarantee": of("noise", wire.publish(event, b"1") * 500),
        "events with guarantee": of("noise", wire.publish(event, b"1", qos=1) * 500),
        "acknowledgements that are not read": of("noise", wire.publish(event, b"1", qos=1) * 500, reads=False),
        "publications for others' Things": of("noise", wire.publish(other, b"1") * 500),
        "publications of a viewer": of("bob", wire.publish(event, b"1") * 500),
        "names that nobody declared": of("noise", unknown),
        "pings": of("bob", wire.PINGREQ_BYTES * 2_000),
        "subscriptions to everything": of("bob", listen * 20),
        "actions": of("op", action.replace(b"bob", b"op") * 200),
        "logins with a good token, MQTT": Neighbour(
            door="mqtt", first=wire.connect("again", "bob", tokens["bob"]), anew=True, connections=4
        ),
        "a subscriber that never reads": Neighbour(door="mqtt", first=deaf, reads=False),
        "events by MQTT over TLS": Neighbour(
            door="mqtts", first=wire.connect("tls", "noise", tokens["noise"]), again=wire.publish(event, b"1") * 500
        ),
    }


def _by_http(tokens: Mapping[str, str]) -> dict[str, Neighbour]:
    def get(path: str, account: str = "bob") -> bytes:
        return _request("GET", path, tokens[account])

    def searching(query: str) -> Neighbour:
        return Neighbour(door="http", again=get(f"/search/{query}"), connections=4)

    stars = ",".join("*" * 900)
    items = [{"v": 1, "operation": "publish_event", "thingID": "lamp", "name": "tick", "data": n} for n in range(4_000)]
    encoded = json.dumps(items).encode()
    td = {
        "@context": "https://www.w3.org/2022/wot/td/v1.1",
        "title": "Heavy",
        "description": "x" * 150_000,
        "properties": {"on": {"type": "boolean"}},
    }
    basic = f"Basic {base64.b64encode(f'bob:{PASSWORD}'.encode()).decode()}"
    return {
        "searches that multiply": searching(f"jsonpath?query=$[{stars}]"),
        "searches of everything": searching("jsonpath?query=$..title"),
        "searches by XPath": searching("xpath?query=//title"),
        "large replies that are not read": Neighbour(
            door="http", again=get("/things?limit=1000"), connections=10, reads=False
        ),
        "listings in a loop": Neighbour(door="http", again=get("/things?limit=1000"), connections=2),
        "streams that are not read": Neighbour(
            door="http", first=get("/stream?kind=event"), connections=5, reads=False
        ),
        "streams opened in a loop": Neighbour(door="http", first=get("/stream?kind=event"), anew=True, connections=8),
        "history in a loop": Neighbour(door="http", again=get("/history?limit=1000"), connections=4),
        "batches of 4,000": Neighbour(
            door="http", again=_request("POST", "/agent/batch", tokens["noise"], encoded), connections=2
        ),
        "heavy descriptions": Neighbour(
            door="http",
            again=b"".join(
                _request("PUT", f"/agent/things/heavy-{number}", tokens["noise"], json.dumps(td).encode())
                for number in range(20)
            ),
        ),
        "good passwords, HTTP": Neighbour(
            door="http",
            again=f"GET /authn/profile HTTP/1.1\r\nhost: localhost\r\nauthorization: {basic}\r\n\r\n".encode(),
            connections=8,
        ),
    }


def _request(method: str, path: str, token: str, body: bytes = b"") -> bytes:
    lines = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n"
    if body:
        lines += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return lines.encode() + b"\r\n" + body


def _post(path: str, body: bytes, length: int | None = None) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def _upgrade(path: str, protocol: str) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        f"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"sec-websocket-protocol: {protocol}\r\norigin: https://elsewhere.example\r\n\r\n"
    ).encode()


# ------------------------------------------------------------ playing one


@dataclass(slots=True)
class Played:
    """What a neighbour did."""

    connections: int = 0
    sent_bytes: int = 0
    read_bytes: int = 0
    is_over: bool = False


async def play(site: Site, one: Neighbour, seconds: float) -> Played:
    """Be this neighbour for so long."""
    done = Played()
    tasks = [asyncio.create_task(_connection(site, one, done)) for _ in range(one.connections)]
    await asyncio.wait(tasks, timeout=seconds)
    done.is_over = True
    while pending := [task for task in tasks if not task.done()]:
        # A connection that fails as it is cancelled may forget the one for the other.
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.1)
    return done


async def _connection(site: Site, one: Neighbour, done: Played) -> None:
    raw, _, name = one.door.rpartition(" ")
    tls = name in ("https", "mqtts") and not raw
    while not done.is_over:
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(*site.doors[name], ssl=_trusting() if tls else None)
            done.connections += 1
            async with asyncio.TaskGroup() as tasks:
                said = tasks.create_task(_say(writer, one, done))
                if one.reads:
                    await _read(reader, one, done)
                    said.cancel()
        except (OSError, ssl.SSLError, ExceptionGroup, asyncio.IncompleteReadError):
            pass  # refused or closed, as it may be
        finally:
            if writer is not None:
                writer.transport.abort()
        await asyncio.sleep(AGAIN_S)


async def _say(writer: asyncio.StreamWriter, one: Neighbour, done: Played) -> None:
    writer.transport.set_write_buffer_limits(high=AHEAD_BYTES)
    if one.first:
        writer.write(one.first)
        done.sent_bytes += len(one.first)
    while one.again:
        writer.write(one.again)
        await writer.drain()
        done.sent_bytes += len(one.again)
        await asyncio.sleep(0)
    await asyncio.Event().wait()


async def _read(reader: asyncio.StreamReader, one: Neighbour, done: Played) -> None:
    while part := await reader.read(262_144):
        done.read_bytes += len(part)
        if one.anew:
            return


@cache
def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _main(path: Path) -> None:
    site = Site.read(path)
    kinds = neighbours(site.tokens)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        done = await play(site, kinds[asked["kind"]], asked["seconds"])
        print(json.dumps([done.connections, done.sent_bytes, done.read_bytes]), flush=True)


if __name__ == "__main__":
    os.nice(5)
    asyncio.run(_main(Path(sys.argv[1])))
