"""Anything at all over HTTP: every path of the API with every method, wrong ids, wrong bodies, wrong queries. No answer
is an internal error or shows a traceback, and a canary agent and consumer go on as if nothing were."""

import asyncio
import gc
import json
import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.faults import resident_bytes, without_tracebacks
from tests.journeys.peers import http_consumer, mqtt_agent
from tests.support import PUMP, Account, Skep, skep

pytestmark = pytest.mark.anyio

LONG = int(os.environ.get("SKEP_TRIAL_FUZZ", "20000"))
GROWTH_BYTES = 32 << 20
"""What requests that succeed leave in caches, in the ledger's and in this process's own memory may take."""
DECLARED = (501, 503, 504)
"""What the API answers of itself: not implemented, full or stopping, and an agent that does not answer in time."""
EVERY = 100
"""Requests between two signs of life of the canary."""

ODD_TEXTS = [
    *("", " ", "dtw:works:pump-1", "dtw:works:", "dtw::", "..", "%2e%2e", "%00", "%2F", "%ff", "a" * 129, "a" * 5_000),
    *("flow", "target", "setSpeed", "alarm", "urn:x:1", "*", "+", "#", "$SYS", "ünï", "\U0001f600", "0", "-1", "1e999"),
    *("'; DROP TABLE requests; --", "{}", "null", "[]", "true", "2026-11-21T12:00:00Z", "9" * 40, "5m", "asc"),
]
ODD_BODIES: list[bytes] = [
    *(
        b"",
        b" ",
        b"{",
        b"}",
        b"null",
        b"true",
        b"3",
        b"-0",
        b"1e999",
        b"NaN",
        b"Infinity",
        b'"\xff"',
        b"\x00",
        b"\xef\xbb\xbf3",
    ),
    *(b"[" * 40 + b"]" * 40, b"[" * 5_000, b'{"a":1,"a":2}', b'"' + b"x" * 10_000 + b'"', b"{}", b"[]", b'{"":""}'),
    *(b'"\\ud800"', b"123456789012345678901234567890", b'{"state":"completed"}', b'{"target": 3}', b'{"target": "x"}'),
    json.dumps(PUMP).encode(),
    json.dumps({**PUMP, "properties": {"x": {"$ref": "http://127.0.0.1:1/x"}}}).encode(),
    json.dumps({**PUMP, "properties": {"x": {"type": "string", "pattern": "(a+)+$"}}}).encode(),
    json.dumps([{"v": 1, "operation": "publish_event", "thingID": "pump-1", "name": "alarm", "data": "x"}]).encode(),
    json.dumps([{"v": "x"}, 3, None]).encode(),
]
HEADERS: list[dict[str, str]] = [
    *({}, {}, {}, {"content-type": "text/plain"}, {"content-type": "application/json; charset=latin-1"}),
    *({"content-encoding": "gzip"}, {"accept": "text/event-stream"}, {"accept": "x/y"}, {"prefer": "wait=-1"}),
    *({"prefer": "wait=0"}, {"idempotency-key": "x" * 300}, {"last-event-id": "zz"}, {"last-event-id": "9" * 30}),
    *(
        {"if-none-match": "*"},
        {"x-expires-in": "-1"},
        {"x-expires-in": "1e99"},
        {"range": "bytes=0-1"},
        {"host": "evil"},
    ),
    *({"origin": "https://evil.example"}, {"cookie": "__Host-skep=x"}, {"authorization": "Bearer x.y.z"}),
]
QUERIES = [
    "after",
    "wait",
    "limit",
    "cursor",
    "from",
    "to",
    "kind",
    "name",
    "agent",
    "thing",
    "state",
    "order",
    "window",
]
QUERIES += ["agg", "sse", "latest", "created", "guarantee", "points", "asof", "forms", "offset", "query"]
LAST_WORDS = ("Traceback", 'File "', "sqlite3.", "asyncio.")


class Fuzz:
    """One stream of requests, the same for the same seed."""

    def __init__(self, seed: int, paths: list[tuple[str, str]], tokens: list[str]) -> None:
        self._rng = random.Random(seed)
        self._paths = paths
        self._tokens = tokens

    def request(self) -> tuple[str, str, dict[str, str], bytes]:
        """Method, target, headers and body."""
        rng = self._rng
        method, path = rng.choice(self._paths)
        if rng.random() < 0.1:
            method = rng.choice(["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW"])
        segments = [self._segment() if part.startswith("{") else part for part in path.split("/")]
        if rng.random() < 0.05:
            segments.insert(rng.randrange(len(segments) + 1), self._segment())
        query = [f"{rng.choice(QUERIES)}={_quoted(rng.choice(ODD_TEXTS))}" for _ in range(rng.choice([0, 0, 1, 2, 3]))]
        # Streams would stay open, and waits would take their time: neither is the point here.
        query = [f"{part.partition('=')[0]}=0" if part.startswith("wait=") else part for part in query]
        headers = {"content-type": "application/json", **rng.choice(HEADERS)}
        if rng.random() < 0.95:
            headers.setdefault("authorization", f"Bearer {rng.choice(self._tokens)}")
        target = "/".join(segments) or "/"
        body = b"" if method in ("GET", "HEAD") else rng.choice(ODD_BODIES)
        if body and rng.random() < 0.3:
            at = rng.randrange(len(body))
            body = body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
        return method, target + ("?" + "&".join(query) if query else ""), headers, body

    def _segment(self) -> str:
        return _quoted(self._rng.choice(ODD_TEXTS))


def _quoted(text: str) -> str:
    return "".join(
        chr(byte)
        if chr(byte) in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:%"
        else f"%{byte:02X}"
        for byte in text.encode()
    )


async def _paths(client: httpx2.AsyncClient) -> list[tuple[str, str]]:
    document = (await client.get("/openapi.json")).json()
    found = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]
    assert len(found) > 30
    # Logout would end the clients' own tokens' logins; accounts are not what is fuzzed.
    return [(method, path) for method, path in found if method in ("GET", "PUT", "POST", "DELETE", "PATCH", "HEAD")]


async def fuzzed(home: Path, count: int, seed: int) -> str:
    statuses: Counter[int] = Counter()
    settled = 0
    with without_tracebacks():
        async with skep(home, limits={"messages_per_second": 1e6, "message_burst": 1e6}) as runtime:
            works, canary = await runtime.add("works", "agent"), await runtime.add("canary", "agent")
            ann, mana = await runtime.add("ann", role="operator"), await runtime.add("mana", role="manager")
            watch = await runtime.add("watch", role="operator")
            others = [await runtime.add(f"{role}-1", role=role) for role in ("none", "viewer", "admin")]
            jobs = await runtime.add("jobs", "service")
            async with (
                mqtt_agent(runtime, canary) as agent,
                mqtt_agent(runtime, works) as victim,
                http_consumer(runtime, watch) as consumer,
                httpx2.AsyncClient(base_url=runtime.http, trust_env=False, timeout=20) as client,
            ):
                await agent.describe("pump-1", PUMP)
                await victim.describe("pump-1", PUMP)
                fuzz = Fuzz(seed, await _paths(client), [one.token for one in (works, ann, mana, jobs, *others)])
                for number in range(count):
                    statuses[await _sent(client, *fuzz.request())] += 1
                    if number == count // 4:
                        gc.collect()
                        settled = resident_bytes()
                    if number % EVERY == 0:
                        await _alive(agent, consumer, number)
                await _alive(agent, consumer, count)
            await _answers(runtime, ann)
            gc.collect()
            grown = resident_bytes() - settled
    assert grown < GROWTH_BYTES
    spread = ", ".join(f"{status}: {times}" for status, times in sorted(statuses.items()))
    return f"0 internal errors in {count} requests, {grown / 2**20:.1f} MiB more ({spread})"


async def _sent(client: httpx2.AsyncClient, method: str, target: str, headers: dict[str, str], body: bytes) -> int:
    text = ""
    with suppress(httpx2.InvalidURL, UnicodeEncodeError):
        async with asyncio.timeout(20):
            async with client.stream(method, target, headers=headers, content=body) as reply:
                if not reply.headers.get("content-type", "").startswith("text/event-stream"):
                    text = (await reply.aread()).decode("utf-8", "replace")
        about = f"{method} {target[:200]} {headers} {body[:100]!r}: {reply.status_code} {text[:300]}"
        assert reply.status_code < 500 or reply.status_code in DECLARED, about
        assert not any(word in text for word in LAST_WORDS), about
        return reply.status_code
    return 0


async def _alive(agent: Any, consumer: Any, number: int) -> None:
    """The canary: an action there and back."""
    reference = f"canary-{number}"
    await consumer.invoke("dtw:canary:pump-1", "setSpeed", 3, reference)
    request = await agent.asked()
    await agent.report(request.request_id, state="completed")
    async with asyncio.timeout(10):
        while True:
            status = await consumer.statuses.get()
            if status["callerRef"] == reference and status["state"] == "completed":
                return


async def _answers(runtime: Skep, ann: Account) -> None:
    async with httpx2.AsyncClient(base_url=runtime.http, trust_env=False, timeout=10) as client:
        assert (await client.get("/readyz")).is_success
        reply = await client.get("/things", headers={"authorization": f"Bearer {ann.token}"})
        assert reply.is_success


async def test_nothing_sent_by_http_disturbs_anybody(tmp_path: Path) -> None:
    print(await fuzzed(tmp_path, 600, seed=1))


@pytest.mark.trial
async def test_nothing_sent_by_http_disturbs_anybody_for_long(tmp_path: Path) -> None:
    print(await fuzzed(tmp_path, LONG, seed=random.SystemRandom().randrange(1 << 30)))
