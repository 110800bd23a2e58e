"""Raw protocol peers: an agent and a consumer on MQTT (aiomqtt) and on HTTP (httpx2), alike to the tests that use them.

They speak the wire contract and nothing of the SDK, so that the two sides are not wrong together.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiomqtt
import anyio
import httpx2

from tests.support import Account, Skep
from tests.trials.process import mqtt_client

WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as its agent gets it; `operation` is action, property, rpc or cancel."""

    operation: str
    thing: str
    name: str
    request_id: str
    input: Any


class AgentPeer(Protocol):
    """Speaks for Things of one account."""

    async def describe(self, thing: str, td: dict[str, Any]) -> None: ...
    async def value(self, thing: str, name: str, value: Any) -> None: ...
    async def event(self, thing: str, name: str, value: Any) -> None: ...
    async def asked(self) -> Asked:
        """The next request."""
        ...

    async def report(self, request_id: str, **status: Any) -> None: ...


class ConsumerPeer(Protocol):
    """Uses Things; `statuses` are those that come to its inbox."""

    statuses: "asyncio.Queue[dict[str, Any]]"

    async def invoke(self, thing_id: str, name: str, data: Any, reference: str) -> None: ...
    async def write(self, thing_id: str, name: str, data: Any, reference: str) -> None: ...
    async def cancel(self, reference: str) -> None: ...
    async def call(self, thing_id: str, name: str, data: Any, reference: str) -> dict[str, Any]:
        """Call and wait: `{"state","output","reason","error"}`."""
        ...


async def final(consumer: ConsumerPeer, reference: str) -> list[dict[str, Any]]:
    """All statuses of a request up to its final one."""
    seen: list[dict[str, Any]] = []
    with anyio.fail_after(WITHIN_S):
        while True:
            status = await consumer.statuses.get()
            if status["callerRef"] == reference:
                seen.append(status)
                if status["state"] in ("completed", "failed", "cancelled"):
                    return seen


# ---------------------------------------------------------------- MQTT


@dataclass
class _MQTT:
    client: aiomqtt.Client
    account: str

    async def _say(self, topic: str, payload: Any) -> None:
        body = payload if isinstance(payload, bytes) else json.dumps(payload)
        await self.client.publish(f"{topic}", body, qos=1)


@dataclass
class MQTTAgent(_MQTT):
    requests: "asyncio.Queue[Asked]" = field(default_factory=asyncio.Queue)

    async def describe(self, thing: str, td: dict[str, Any]) -> None:
        await self._say(f"agents/{self.account}/td/{thing}", td)

    async def value(self, thing: str, name: str, value: Any) -> None:
        await self._say(f"agents/{self.account}/property/{thing}/{name}", value)

    async def event(self, thing: str, name: str, value: Any) -> None:
        await self._say(f"agents/{self.account}/event/{thing}/{name}", value)

    async def asked(self) -> Asked:
        with anyio.fail_after(WITHIN_S):
            return await self.requests.get()

    async def report(self, request_id: str, **status: Any) -> None:
        await self._say(f"agents/{self.account}/status/{request_id}", status)

    async def listen(self) -> None:
        async for message in self.client.messages:
            levels = str(message.topic).split("/")
            payload = message.payload if isinstance(message.payload, bytes) else b""
            if levels[2] == "cancel":
                self.requests.put_nowait(Asked(operation="cancel", thing="", name="", request_id=levels[3], input=None))
            elif levels[2] in ("action", "property", "rpc"):
                self.requests.put_nowait(
                    Asked(
                        operation=levels[2],
                        thing=levels[3],
                        name=levels[4],
                        request_id=levels[5],
                        input=json.loads(payload) if payload else None,
                    )
                )


@dataclass
class MQTTConsumer(_MQTT):
    statuses: "asyncio.Queue[dict[str, Any]]" = field(default_factory=asyncio.Queue)

    async def invoke(self, thing_id: str, name: str, data: Any, reference: str) -> None:
        await self._say(f"req/{self.account}/action/{_levels(thing_id)}/{name}/{reference}", data)

    async def write(self, thing_id: str, name: str, data: Any, reference: str) -> None:
        await self._say(f"req/{self.account}/property/{_levels(thing_id)}/{name}/{reference}", data)

    async def cancel(self, reference: str) -> None:
        await self._say(f"req/{self.account}/cancel/{reference}", b"")

    async def call(self, thing_id: str, name: str, data: Any, reference: str) -> dict[str, Any]:
        await self._say(f"req/{self.account}/rpc/{_levels(thing_id)}/{name}/{reference}", data)
        return (await final(self, reference))[-1]

    async def listen(self) -> None:
        async for message in self.client.messages:
            levels = str(message.topic).split("/")
            payload = message.payload if isinstance(message.payload, bytes) else b""
            if levels[2] == "status":
                self.statuses.put_nowait(json.loads(payload))
            elif levels[2] == "refused":
                problem = json.loads(payload)
                self.statuses.put_nowait(
                    {
                        "callerRef": problem.get("callerRef"),
                        "state": "failed",
                        "reason": problem["code"],
                        "error": problem["detail"],
                    }
                )


def _levels(thing_id: str) -> str:
    _, agent, thing = thing_id.split(":", 2)
    return f"{agent}/{thing}"


@asynccontextmanager
async def mqtt_agent(skep: Skep, account: Account) -> AsyncIterator[MQTTAgent]:
    async with mqtt_client(skep.mqtt_address, account) as client:
        peer = MQTTAgent(client, account.name)
        await client.subscribe(f"inbox/{account.name}/#", qos=1)
        async with _listening(peer):
            yield peer


@asynccontextmanager
async def mqtt_consumer(skep: Skep, account: Account) -> AsyncIterator[MQTTConsumer]:
    async with mqtt_client(skep.mqtt_address, account) as client:
        peer = MQTTConsumer(client, account.name)
        await client.subscribe(f"inbox/{account.name}/#", qos=1)
        async with _listening(peer):
            yield peer


@asynccontextmanager
async def _listening(peer: Any) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.listen)
        yield
        tasks.cancel_scope.cancel()


# ---------------------------------------------------------------- HTTP


@dataclass
class _HTTP:
    client: httpx2.AsyncClient
    account: str

    async def _send(self, method: str, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        given = {"content": json.dumps(body), "headers": {"content-type": "application/json", **headers}}
        return await self.client.request(method, path, **(given if body is not None else {"headers": headers}))

    async def _events(self, path: str) -> AsyncIterator[Any]:
        async with self.client.stream("GET", path, headers={"accept": "text/event-stream"}, timeout=None) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    yield json.loads(line.removeprefix("data:"))


@dataclass
class HTTPAgent(_HTTP):
    """By event stream, or by long poll."""

    polls: bool = False
    requests: "asyncio.Queue[Asked]" = field(default_factory=asyncio.Queue)

    async def describe(self, thing: str, td: dict[str, Any]) -> None:
        (await self._send("PUT", f"/agent/things/{thing}", td)).raise_for_status()

    async def value(self, thing: str, name: str, value: Any) -> None:
        (await self._send("POST", f"/agent/things/{thing}/properties", {name: value})).raise_for_status()

    async def event(self, thing: str, name: str, value: Any) -> None:
        (await self._send("POST", f"/agent/things/{thing}/events/{name}", value)).raise_for_status()

    async def asked(self) -> Asked:
        with anyio.fail_after(WITHIN_S):
            return await self.requests.get()

    async def report(self, request_id: str, **status: Any) -> None:
        (await self._send("POST", f"/agent/status/{request_id}", status)).raise_for_status()

    async def listen(self) -> None:
        if not self.polls:
            async for document in self._events("/agent/requests"):
                self._take(document)
            return
        after = 0
        while True:
            response = await self.client.get(f"/agent/requests?after={after}&wait=5", timeout=None)
            response.raise_for_status()
            page = response.json()
            for document in page["items"]:
                self._take(document)
            after = page.get("cursor", after)

    def _take(self, document: dict[str, Any]) -> None:
        operations = {
            "invoke_action": "action",
            "write_property": "property",
            "call_rpc": "rpc",
            "cancel": "cancel",
        }
        self.requests.put_nowait(
            Asked(
                operation=operations[document["operation"]],
                thing=document["thingID"],
                name=document["name"],
                request_id=document["requestID"],
                input=document.get("input"),
            )
        )


@dataclass
class HTTPConsumer(_HTTP):
    statuses: "asyncio.Queue[dict[str, Any]]" = field(default_factory=asyncio.Queue)
    ids: dict[str, str] = field(default_factory=dict)

    async def invoke(self, thing_id: str, name: str, data: Any, reference: str) -> None:
        path = f"/things/{thing_id}/actions/{name}"
        self._note(await self._send("POST", path, data, **{"idempotency-key": reference}), reference)

    async def write(self, thing_id: str, name: str, data: Any, reference: str) -> None:
        path = f"/things/{thing_id}/properties/{name}"
        headers = {"idempotency-key": reference, "prefer": "wait=0"}
        self._note(await self._send("PUT", path, data, **headers), reference)

    async def cancel(self, reference: str) -> None:
        (await self._send("DELETE", f"/requests/{self.ids[reference]}")).raise_for_status()

    async def call(self, thing_id: str, name: str, data: Any, reference: str) -> dict[str, Any]:
        response = await self._send("POST", f"/rpc/{thing_id}/{name}", data, **{"idempotency-key": reference})
        if response.is_success:
            return {"state": "completed", "output": response.json() if response.content else None}
        problem = response.json()
        return {"state": "failed", "reason": problem["code"], "error": problem["detail"]}

    async def listen(self) -> None:
        async for document in self._events("/inbox"):
            self.statuses.put_nowait(document)

    def _note(self, response: httpx2.Response, reference: str) -> None:
        if response.is_success:
            self.ids[reference] = response.headers["location"].rpartition("/")[2]
            return
        problem = response.json()
        self.statuses.put_nowait(
            {"callerRef": reference, "state": "failed", "reason": problem["code"], "error": problem["detail"]}
        )


@asynccontextmanager
async def http_agent(skep: Skep, account: Account, *, polls: bool = False) -> AsyncIterator[HTTPAgent]:
    async with _client(skep, account) as client:
        peer = HTTPAgent(client, account.name, polls)
        async with _listening(peer):
            yield peer


@asynccontextmanager
async def http_consumer(skep: Skep, account: Account) -> AsyncIterator[HTTPConsumer]:
    async with _client(skep, account) as client:
        peer = HTTPConsumer(client, account.name)
        async with _listening(peer):
            yield peer


@asynccontextmanager
async def _client(skep: Skep, account: Account) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        base_url=skep.http,
        headers={"authorization": f"Bearer {account.token}"},
        trust_env=False,
        verify=False,
        timeout=30,
    ) as client:
        yield client
