"""Whoever loses a right, a role, a token or an account hears nothing more: on MQTT of both engines, MQTT over
WebSocket, event streams, long polls, the web thing protocol and the messaging node. What is published after the act has
been answered reaches none of their open sessions, and where credentials ended the sessions are closed within a second.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiomqtt
import anyio
import httpx2
import pytest
from websockets.exceptions import ConnectionClosed

from authz.documents import RuleDocument
from authz.policy.sets import set_document
from tests.bindings.messaging_node.support import SM
from tests.bindings.messaging_node.support import client as node_client
from tests.bindings.websocket.clients import web_thing_client
from tests.support import PUMP, Account, Skep, skep
from tests.trials.process import mqtt_client
from things.delivery import DeliveryStatus
from things.identity import AccountType, Principal, Role
from things.messages import Message, Operation
from things.parsing import parsed

pytestmark = pytest.mark.anyio

TRIALS = int(os.environ.get("SKEP_TRIAL_REVOCATIONS", "100"))
WITHIN_S = 1.0
PASSWORD = "correct horse battery"
ROOT = Principal(account="root", type=AccountType.CONSUMER, role=Role.ADMIN)
THING = "dtw:works:pump-1"


@dataclass(slots=True)
class Watcher:
    """One open session; `heard` are the numbers of the events that reached it."""

    name: str
    heard: list[int] = field(default_factory=list)
    closed: anyio.Event = field(default_factory=anyio.Event)


@dataclass(slots=True)
class Trial:
    """One account with a session of every kind, and an agent whose events they watch."""

    runtime: Skep
    who: Account
    number: int = 0

    async def publish(self) -> None:
        """The next event."""
        self.number += 1
        message = Message(
            operation=Operation.PUBLISH_EVENT,
            principal=Principal(account="works", type=AccountType.AGENT, role=Role.AGENT),
            thing_id=THING,
            name="alarm",
            data=str(self.number),
            received=self.runtime.running.runtime.clock(),
        )
        status: DeliveryStatus = await self.runtime.running.runtime.handle(message)
        assert status.state == "completed"

    # ------------------------------------------------------------ sessions of every kind

    async def mqtt(self, watcher: Watcher) -> None:
        await self._by_mqtt(watcher, mqtt_client(self.runtime.mqtt_address, self.who))

    async def mqtt_over_websocket(self, watcher: Watcher) -> None:
        address = urlsplit(self.runtime.http)
        where = (address.hostname or "", address.port or 0)
        await self._by_mqtt(watcher, mqtt_client(where, self.who, transport="websockets", websocket_path="/mqtt"))

    async def _by_mqtt(self, watcher: Watcher, connected: AbstractAsyncContextManager[aiomqtt.Client]) -> None:
        with suppress(aiomqtt.MqttError):
            async with connected as client:
                await client.subscribe("things/works/+/event/#", qos=1)
                async for message in client.messages:
                    assert isinstance(message.payload, bytes)
                    watcher.heard.append(int(json.loads(message.payload)))

    async def stream(self, watcher: Watcher) -> None:
        async with (
            self._http() as client,
            client.stream("GET", "/stream?agent=works&kind=event", headers={"accept": "text/event-stream"}) as reply,
        ):
            assert reply.status_code == 200
            async for line in reply.aiter_lines():
                if line.startswith("data:"):
                    watcher.heard.append(int(json.loads(line.removeprefix("data:"))["value"]))

    async def web_thing(self, watcher: Watcher) -> None:
        async with web_thing_client(self.runtime, self.who) as client:
            answer = await client.request("subscribeevent", THING, name="alarm")
            assert "error" not in answer, answer
            async with anyio.create_task_group() as tasks:

                async def heard() -> None:
                    while True:
                        watcher.heard.append(int((await client.notified.get())["data"]))

                tasks.start_soon(heard)
                await client.socket.wait_closed()
                tasks.cancel_scope.cancel()

    async def node(self, watcher: Watcher) -> None:
        event = f"thing://localhost/{THING.removeprefix('dtw:').replace(':', '/')}/children/alarm"
        with suppress(ConnectionClosed):
            async with node_client(self.runtime, self.who.name, self.who.token) as client:
                assert await client.code("subscribe", SM, {"resources": [event]}) == 200
                for message in client.aside:
                    watcher.heard.append(int(message["body"]["value"]))
                async for text in client.socket:
                    watcher.heard.append(int(json.loads(text)["body"]["value"]))

    async def long_poll(self, watcher: Watcher) -> None:
        after = self.runtime.running.stores.twin.history.last_row
        async with self._http() as client:
            while True:
                reply = await client.get(f"/stream?agent=works&kind=event&after={after}&wait=20")
                if reply.status_code in (401, 403):
                    return
                page = reply.json()
                watcher.heard += [int(item["value"]) for item in page["items"]]
                after = int(page.get("cursor", after))

    @asynccontextmanager
    async def _http(self) -> AsyncIterator[httpx2.AsyncClient]:
        async with httpx2.AsyncClient(
            base_url=self.runtime.http,
            headers={"authorization": f"Bearer {self.who.token}"},
            trust_env=False,
            timeout=30,
        ) as client:
            yield client


Act = Callable[[Skep, str], Awaitable[object]]


async def _disable(runtime: Skep, name: str) -> None:
    await runtime.running.stores.authenticator.administration.disable(name, by="test")


async def _revoke_token(runtime: Skep, name: str) -> None:
    authenticator = runtime.running.stores.authenticator
    (token,) = authenticator.register.tokens_of(name)
    await authenticator.administration.revoke_token(token.credential_id, by="test")


async def _logout(runtime: Skep, name: str) -> None:
    authenticator = runtime.running.stores.authenticator
    (login,) = authenticator.register.logins_of(name)
    await authenticator.logout(
        Principal(account=name, type=AccountType.CONSUMER, role=Role.VIEWER, login_id=login.credential_id)
    )


async def _role(runtime: Skep, name: str) -> None:
    await runtime.running.stores.authenticator.administration.set_role(name, Role.NONE, by="test")


async def _rule(runtime: Skep, name: str) -> None:
    document = {"id": f"no-{name}", "effect": "deny", "thing": "dtw:works:*", "accounts": [name]}
    await runtime.running.stores.authorizer.put_rule(parsed(RuleDocument, document), ROOT)


async def _policy(runtime: Skep, name: str) -> None:
    rule = {"id": "no", "effect": "block", "target": {"sender": name}}
    document = {"id": f"no-{name}", "policies": [{"id": "all", "rules": [rule]}]}
    await runtime.running.stores.authorizer.put_policy_set(set_document(document))


CLOSING: dict[str, Act] = {"disabled": _disable, "token-revoked": _revoke_token, "logout": _logout, "role": _role}
"""Acts that end sessions, or let them go on with a fresh principal."""
SILENCING: dict[str, Act] = {"rule": _rule, "policy": _policy}
"""Acts after which sessions stay open and are asked again at each delivery."""


async def _account(runtime: Skep, name: str, act: str) -> Account:
    """With the credential that the act ends."""
    if act != "logout":
        return await runtime.add(name, role="viewer")
    authenticator = runtime.running.stores.authenticator
    await authenticator.administration.add(
        name, AccountType.CONSUMER, Role.VIEWER, password=PASSWORD, with_token=False, by="test"
    )
    opened = await authenticator.open_login(name, PASSWORD, source=None)
    return Account(name=name, token=opened.access_token)


async def revoked_once(runtime: Skep, name: str, act: str, websocket: bool) -> float:
    """One trial: how long the sessions stayed open after the act began, in seconds."""
    trial = Trial(runtime, await _account(runtime, name, act))
    kinds = [trial.mqtt, trial.stream, trial.long_poll, trial.web_thing, trial.node]
    kinds += [trial.mqtt_over_websocket] if websocket else []
    watchers = [Watcher(kind.__name__) for kind in kinds]

    async def watched(kind: Callable[[Watcher], Awaitable[None]], watcher: Watcher) -> None:
        with suppress(httpx2.HTTPError):
            await kind(watcher)
        watcher.closed.set()

    async with anyio.create_task_group() as tasks:
        for kind, watcher in zip(kinds, watchers, strict=True):
            tasks.start_soon(watched, kind, watcher)
        with anyio.fail_after(20):
            while not all(watcher.heard for watcher in watchers):
                await trial.publish()
                await anyio.sleep(0.01)

        began = time.monotonic()
        await (CLOSING | SILENCING)[act](runtime, name)
        last = trial.number
        closed_s = 0.0
        if act in CLOSING and act != "role":
            with anyio.fail_after(WITHIN_S):
                for watcher in watchers:
                    await watcher.closed.wait()
            closed_s = time.monotonic() - began
        for _ in range(20):
            await trial.publish()
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        tasks.cancel_scope.cancel()

    for watcher in watchers:
        assert watcher.heard, f"{watcher.name} heard nothing at all"
        assert max(watcher.heard) <= last, f"{watcher.name} heard {max(watcher.heard)} after {last} ({act})"
    return closed_s


async def revoked_often(home: Path, engine: str, times: int) -> str:
    slowest, sessions = 0.0, 0
    acts = [*CLOSING, *SILENCING]
    async with skep(home, mqtt={"engine": engine}) as runtime:
        await runtime.add("works", "agent")
        principal = Principal(account="works", type=AccountType.AGENT, role=Role.AGENT)
        td = Message(
            operation=Operation.PUBLISH_TD,
            principal=principal,
            thing_id=THING,
            name="",
            data=json.dumps(PUMP),
            received=runtime.running.runtime.clock(),
        )
        await runtime.running.runtime.handle(td)
        for number in range(times):
            act = acts[number % len(acts)]
            slowest = max(slowest, await revoked_once(runtime, f"eve-{number}", act, websocket=engine == "native"))
            sessions += 6 if engine == "native" else 5
    return f"0 of {sessions} sessions heard anything after {times} revocations; closed within {slowest * 1e3:.0f} ms"


@pytest.mark.parametrize(("engine", "times"), [("native", 6), ("amqtt", 6)])
async def test_revoked_sessions_hear_nothing_more(tmp_path: Path, engine: str, times: int) -> None:
    print(await revoked_often(tmp_path, engine, times))


@pytest.mark.trial
@pytest.mark.parametrize("engine", ["native", "amqtt"])
async def test_revoked_sessions_hear_nothing_more_in_many_trials(tmp_path: Path, engine: str) -> None:
    print(await revoked_often(tmp_path, engine, TRIALS))
