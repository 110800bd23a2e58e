"""What is put off over each door: left before a right ends, and tried or looked at after that.

What is open lives in a task of its own until the trial is over, and notes what it hears.
"""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from anyio.abc import TaskGroup, TaskStatus
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.bindings.messaging_node.support import ALLOCATION, REGISTRY, SM
from tests.bindings.messaging_node.support import Client as NodeClient
from tests.bindings.mqtt.support import Client, Refused
from tests.bindings.websocket.clients import PROTOCOL
from tests.support import PUMP, Account, Skep
from tests.trials.left_behind.cases import AFTER, Case
from tests.trials.left_behind.rights import Rights
from things.errors import SkepError

THING = "dtw:works:pump-1"
NODE_THING = "thing://localhost/works/pump-1"
KEPT: dict[str, Any] = {"v5": True, "clean": False, "connect_properties": {"SessionExpiryInterval": 600}}
MATE = "hyperty://localhost/mate"


@dataclass(slots=True)
class Acts:
    """The doors of one runtime. `mate` is in good standing, and away from the node: what is sent to it waits."""

    runtime: Skep
    rights: Rights
    stack: AsyncExitStack
    tasks: TaskGroup
    plain: httpx.AsyncClient
    mate: Account
    delay_s: int = 2
    """Of delayed wills."""
    mate_session: str = ""
    heard_by_mate: list[str] = field(default_factory=list)

    # ------------------------------------------------------------ how a case comes

    def mqtt(self, case: Case, **options: Any) -> Client:
        mqtts = urlsplit(self.runtime.running.mqtts or "")
        address = (mqtts.hostname or "", mqtts.port or 0) if case.tls else self.runtime.mqtt_address
        return Client(address, case.name, case.secret or None, case.name, tls=case.tls, **options)

    def headers(self, case: Case) -> dict[str, str]:
        if case.credential == "password":
            text = base64.b64encode(f"{case.name}:{case.secret}".encode()).decode()
            return {"authorization": f"Basic {text}"}
        return {} if case.tls else {"authorization": f"Bearer {case.secret}"}

    async def http(self, case: Case) -> httpx.AsyncClient:
        if case.tls is None:
            return self.plain
        client = httpx.AsyncClient(base_url=self.runtime.https, verify=case.tls, trust_env=False, timeout=60)
        return await self.stack.enter_async_context(client)

    def websocket(self, case: Case, path: str, **options: Any) -> connect:
        base = self.runtime.https if case.tls else self.runtime.http
        tls: ssl.SSLContext | None = case.tls
        return connect(
            f"ws{base.removeprefix('http')}{path}",
            additional_headers=self.headers(case),
            ssl=tls,
            proxy=None,
            **options,
        )

    @asynccontextmanager
    async def node(self, case: Case) -> AsyncIterator[NodeClient]:
        async with self.websocket(case, "/ws") as socket:
            client = NodeClient(socket, f"hyperty-runtime://localhost/{case.name}")
            opened = await client.open()
            assert opened["body"]["code"] == 200, opened
            yield client

    # ------------------------------------------------------------ acts

    async def put_off(self, case: Case) -> None:
        """Do what the case leaves behind."""
        acts: dict[str, Callable[[Case], Awaitable[None]]] = {
            "will": self._will,
            "delayed will": self._delayed_will,
            "request by MQTT": self._request,
            "request by HTTP": self._http_request,
            "parked queue": self._parked,
            "slow body": self._slow_body,
            "open MQTT connection": self._open_mqtt,
            "event stream": self._stream,
            "stream by ticket": self._ticket,
            "long poll": self._long_poll,
            "web thing subscription": self._web_thing,
            "open web thing socket": self._web_thing,
            "node subscription": self._node,
            "open node session": self._node,
            "away node session": self._away,
            "node registration": self._registration,
            "node message that waits": self._message,
            "refresh token": self._refresh,
            "agent's will": self._will,
            "agent's delayed will": self._delayed_will,
            "agent's open connection": self._open_mqtt,
            "key for provisioning": self._key,
        }
        await acts[case.act.name](case)

    def _left(self, case: Case) -> tuple[str, Any]:
        """Where an act of the account says something, and what."""
        if case.act.is_agents:
            return f"agents/{case.name}/event/t/alarm", f"{AFTER} all"
        return f"req/{case.name}/action/works/pump-1/setSpeed/left", 3

    async def _described(self, case: Case) -> None:
        if case.act.is_agents:
            async with self.mqtt(case) as client:
                await client.publish(f"agents/{case.name}/td/t", PUMP)

    async def _will(self, case: Case) -> None:
        await self._described(case)
        topic, value = self._left(case)
        client = self.mqtt(case, will=(topic, json.dumps(value).encode()))
        await self.stack.enter_async_context(client)

        async def cut() -> None:
            if client.paho.socket() is not None:
                await client.break_off()

        case.finish.append(cut)

    async def _delayed_will(self, case: Case) -> None:
        await self._described(case)
        topic, value = self._left(case)
        async with self.mqtt(
            case, will=(topic, json.dumps(value).encode()), will_delay_s=self.delay_s, **KEPT
        ) as client:
            await client.break_off()

    async def _request(self, case: Case) -> None:
        async with self.mqtt(case) as client:
            await client.publish(*self._left(case))

    async def _http_request(self, case: Case) -> None:
        http = await self.http(case)
        headers = {**self.headers(case), "idempotency-key": "left", "prefer": "wait=0"}
        reply = await http.post(f"/things/{THING}/actions/setSpeed", json=3, headers=headers)
        assert reply.status_code == 201, reply.text

    async def _parked(self, case: Case) -> None:
        async with self.mqtt(case, **KEPT) as client:
            await client.subscribe("things/works/pump-1/event/#")

        async def back() -> None:
            with suppress(Refused):
                async with self.mqtt(case, **KEPT) as client:
                    case.heard += [one.topic for one in await client.settle()]

        case.finish.append(back)

    async def _slow_body(self, case: Case) -> None:
        """A request whose body comes after the revocation."""
        where = urlsplit(self.runtime.http)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        self.stack.callback(writer.close)
        head = (
            f"POST /things/{THING}/actions/setSpeed HTTP/1.1\r\nHost: {where.netloc}\r\n"
            f"Authorization: Bearer {case.secret}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n "
        )
        writer.write(head.encode())
        await writer.drain()

        async def rest() -> None:
            writer.write(b"3")
            await writer.drain()
            status = (await reader.readline()).split()[1]
            if status.startswith(b"2"):
                case.heard.append(f"HTTP {status.decode()}")

        case.finish.append(rest)

    async def _open_mqtt(self, case: Case) -> None:
        await self._described(case)
        client = await self.stack.enter_async_context(self.mqtt(case))

        async def published() -> None:
            client.send(*self._left(case))

        case.finish.append(published)

    async def _stream(self, case: Case) -> None:
        await self.tasks.start(self._listening, case, "/stream?agent=works&kind=event", self.headers(case))

    async def _ticket(self, case: Case) -> None:
        body = {"stream": "/stream?agent=works&kind=event"}
        given = (await self.plain.post("/authn/ticket", json=body, headers=self.headers(case))).json()
        await self.tasks.start(self._listening, case, given["href"], {})

        async def again() -> None:
            if case.revocation not in ("rule", "policy"):
                reply = await self.plain.get(given["href"])
                if reply.status_code == 200:
                    case.heard.append("the ticket's stream, again")

        case.finish.append(again)

    async def _listening(
        self, case: Case, target: str, headers: dict[str, str], *, task_status: TaskStatus[None]
    ) -> None:
        http = await self.http(case) if headers or case.tls else self.plain
        with suppress(httpx.HTTPError):
            async with http.stream("GET", target, headers={**headers, "accept": "text/event-stream"}) as reply:
                assert reply.status_code == 200, reply.status_code
                task_status.started()
                async for line in reply.aiter_lines():
                    if line.startswith("data:"):
                        case.hear(json.loads(line.removeprefix("data:"))["value"])

    async def _long_poll(self, case: Case) -> None:
        after = self.runtime.running.stores.twin.history.last_row
        self.tasks.start_soon(self._polling, case, await self.http(case), after)

    async def _polling(self, case: Case, http: httpx.AsyncClient, after: int) -> None:
        while True:
            target = f"/stream?agent=works&kind=event&after={after}&wait=20"
            with suppress(httpx.HTTPError):
                reply = await http.get(target, headers=self.headers(case))
                if reply.status_code != 200:
                    return
                page = reply.json()
                for item in page["items"]:
                    case.hear(item["value"])
                after = int(page.get("cursor", after))

    async def _web_thing(self, case: Case) -> None:
        await self.tasks.start(self._web_thing_open, case)

    async def _web_thing_open(self, case: Case, *, task_status: TaskStatus[None]) -> None:
        with suppress(ConnectionClosed):
            async with self.websocket(case, "/wot/ws", subprotocols=[PROTOCOL]) as socket:
                asked = {"thingID": THING, "messageID": "1", "messageType": "request", "correlationID": "1"}
                await socket.send(json.dumps({**asked, "operation": "subscribeevent", "name": "alarm"}))
                answer = json.loads(await socket.recv())
                assert "error" not in answer, answer
                task_status.started()

                async def act() -> None:
                    act = {**asked, "messageID": "2", "correlationID": "left", "operation": "invokeaction"}
                    with suppress(ConnectionClosed):
                        await socket.send(json.dumps({**act, "name": "setSpeed", "input": 3}))

                if case.act.name == "open web thing socket":
                    case.finish.append(act)
                async for text in socket:
                    message = json.loads(text)
                    if message["messageType"] == "notification":
                        case.hear(message.get("data"))

    async def _node(self, case: Case) -> None:
        await self.tasks.start(self._node_open, case)

    async def _node_open(self, case: Case, *, task_status: TaskStatus[None]) -> None:
        with suppress(ConnectionClosed):
            async with self.node(case) as client:
                events = f"{NODE_THING}/children/alarm"
                assert await client.code("subscribe", SM, {"resources": [events]}) == 200
                task_status.started()

                async def act() -> None:
                    with suppress(ConnectionClosed):
                        await client.send("execute", NODE_THING, {"method": "setSpeed", "params": 3})

                if case.act.name == "open node session":
                    case.finish.append(act)
                async for text in client.socket:
                    case.hear(_told(json.loads(text)))

    async def _away(self, case: Case) -> None:
        async with self.node(case) as client:
            assert await client.code("subscribe", SM, {"resources": [f"{NODE_THING}/children/alarm"]}) == 200
            session = client.session

        async def back() -> None:
            with suppress(ConnectionClosed, InvalidStatus):
                async with self.websocket(case, "/ws") as socket:
                    again = NodeClient(socket, client.runtime)
                    if (await again.reopen(session))["body"]["code"] != 200:
                        return
                    await again.nothing()
                    case.heard += [str(_told(one)) for one in again.aside if _told(one) is not None]

        case.finish.append(back)

    async def _registration(self, case: Case) -> None:
        url = f"comm://localhost/{case.name}"
        async with self.node(case) as client:
            assert await client.code("create", ALLOCATION, {"value": {"allocated": [url]}}) == 200
            assert await client.code("create", REGISTRY, {"value": {"url": url, "status": "live"}}) == 200

        async def read() -> None:
            async with self.mates() as mate:
                found = (await mate.ask("read", REGISTRY, {"resource": url}))["body"]
                if found["code"] != 404:
                    case.heard.append(f"registration {found['code']}")

        case.finish.append(read)

    async def _message(self, case: Case) -> None:
        async with self.node(case) as client:
            await client.send("create", MATE, {"value": case.name}, **{"from": client.runtime})
            assert await client.nothing()

        async def read() -> None:
            if case.name in await self.waiting_for_mate():
                case.heard.append("a message that waited")

        case.finish.append(read)

    async def _refresh(self, case: Case) -> None:
        async def again() -> None:
            reply = await self.plain.post("/authn/refresh", json={"refreshToken": case.secret})
            if reply.status_code == 200:
                case.heard.append("fresh tokens")

        case.finish.append(again)

    async def _key(self, case: Case) -> None:
        async def ask() -> None:
            with suppress(SkepError):
                if await self.rights.provision(case) is not None:
                    case.heard.append("a device's token")

        case.finish.append(ask)

    # ------------------------------------------------------------ the one in good standing

    @asynccontextmanager
    async def mates(self, runtime: str = "watcher") -> AsyncIterator[NodeClient]:
        url = f"ws{self.runtime.http.removeprefix('http')}/ws"
        headers = {"authorization": f"Bearer {self.mate.token}"}
        async with connect(url, additional_headers=headers, proxy=None) as socket:
            client = NodeClient(socket, f"hyperty-runtime://localhost/{runtime}")
            assert (await client.open())["body"]["code"] == 200
            yield client

    async def mate_leaves(self) -> None:
        """From now on messages to it wait."""
        async with self.mates("mate") as client:
            assert await client.code("create", ALLOCATION, {"value": {"allocated": [MATE]}}) == 200
            self.mate_session = client.session

    async def waiting_for_mate(self) -> list[str]:
        """Whose messages waited for it, once it is back."""
        if self.mate_session:
            session, self.mate_session = self.mate_session, ""
            url = f"ws{self.runtime.http.removeprefix('http')}/ws"
            headers = {"authorization": f"Bearer {self.mate.token}"}
            async with connect(url, additional_headers=headers, proxy=None) as socket:
                client = NodeClient(socket, "hyperty-runtime://localhost/mate")
                assert (await client.reopen(session))["body"]["code"] == 200
                await client.nothing()
                self.heard_by_mate += [one["body"].get("value", "") for one in client.aside if one["type"] == "create"]
        return self.heard_by_mate


def _told(message: dict[str, Any]) -> object:
    """The event that a message of the node tells; None if it tells none."""
    return message["body"].get("value") if message["type"] in ("create", "update") else None
