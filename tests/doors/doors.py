"""The doors: one adapter each, which says what it is given in the words of its protocol.

A new door joins by a class with `send` and a line in `DOORS`. An adapter checks nothing itself and hides nothing: what
its protocol cannot say raises NotExpressible, and the page of the contract shows it.
"""

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

import anyio
import httpx2

from skep import Agent, Consumer
from skep.http_client import problem_of
from skep.outgoing import Problem
from tests.bindings.messaging_node.support import Client as NodeClient
from tests.bindings.messaging_node.support import client as node_client
from tests.bindings.mqtt.support import Client as MQTTClient
from tests.bindings.mqtt.support import Refused as PublishRefused
from tests.bindings.websocket.clients import WebThingClient, web_thing_client
from tests.doors.contract import Accepted, Answer, Door, Listeners, NotExpressible, Operation, Refused, Sent
from tests.doors.table import TD
from tests.support import Account
from things.errors import SkepError
from things.times import parse_time, to_datetime

WITHIN_S = 30.0
_PUBLICATIONS = {Operation.PROPERTY: "publish_property", Operation.EVENT: "publish_event"}
_WORDS = {Operation.INVOKE: "action", Operation.WRITE: "property", Operation.CALL: "rpc"}
_numbers = itertools.count(1)
T = TypeVar("T")


def segment(name: str) -> str:
    """A name in a topic or path; a client would resolve the dots of a path itself."""
    return quote(name, safe="").replace(".", "%2E")


def never(reason: str) -> NoReturn:
    raise NotExpressible(reason)


# ---------------------------------------------------------------- HTTP


class HTTP:
    """HTTP, on a listener or on the control socket."""

    def __init__(self, name: str, client_of: Callable[[str], httpx2.AsyncClient]) -> None:
        self.name = name
        self._client_of = client_of

    async def send(self, sent: Sent) -> Answer:
        name = segment(sent.name)
        if len(sent.name) > 10_000 and sent.operation is not Operation.PROPERTY:
            never("no request line holds the name")
        headers = {"content-type": "application/json"}
        if sent.message_id is not None and not sent.message_id.isprintable():
            never("a header field has no line feeds")
        reference = sent.reference or sent.message_id
        if reference is not None:
            headers["idempotency-key"] = reference
        if sent.expires_s is not None:
            headers["x-expires-in"] = f"{sent.expires_s:g}"
        query = {} if sent.created is None else {"created": sent.created}
        content = sent.data
        match sent.operation:
            case Operation.PROPERTY:
                if sent.data is None:
                    never("a property is a member of an object, which has a value")
                method, path = "POST", f"/agent/things/{segment(sent.thing)}/properties"
                content = b"{%s:%s}" % (json.dumps(sent.name).encode(), sent.data)
            case Operation.EVENT:
                method, path = "POST", f"/agent/things/{segment(sent.thing)}/events/{name}"
            case Operation.VALUES:
                method, path = "POST", f"/agent/things/{segment(sent.thing)}/properties"
            case Operation.TD:
                method, path = "PUT", f"/agent/things/{segment(sent.thing)}"
            case Operation.REMOVE:
                method, path = "DELETE", f"/agent/things/{segment(sent.thing)}"
            case Operation.INVOKE:
                method, path = "POST", f"/things/{segment(sent.thing)}/actions/{name}"
            case Operation.WRITE:
                method, path = "PUT", f"/things/{segment(sent.thing)}/properties/{name}"
                headers["prefer"] = "wait=0"
            case Operation.CALL:
                method, path = "POST", f"/rpc/{segment(sent.thing)}/{name}"
            case Operation.CANCEL:
                method, path = "DELETE", f"/requests/{name}"
            case Operation.REPORT:
                method, path = "POST", f"/agent/status/{name}"
            case Operation.READ:
                method, path = "GET", f"/things/{segment(sent.thing)}/properties/{name}"
        if "//" in path or path.endswith("/"):
            never("a path has no empty segments")
        reply = await self._client_of(sent.by).request(method, path, content=content, headers=headers, params=query)
        if reply.is_success:
            return Accepted(reply.json() if sent.operation is Operation.READ else None)
        return Refused(reply.json())


class ControlSocket(HTTP):
    """The same for the owner of the machine, who may use every Thing and has none."""

    async def send(self, sent: Sent) -> Answer:
        if sent.reference is not None:
            never("references of two callers never meet, and what was sent before was somebody else's")
        if sent.by != "ann" or sent.operation not in {*_WORDS, Operation.CANCEL, Operation.READ}:
            never("its caller is the owner of the machine, who is no agent and may do everything")
        return await super().send(sent)


@asynccontextmanager
async def http(listeners: Listeners) -> AsyncIterator[Door]:
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(
                httpx2.AsyncClient(
                    base_url=listeners.http,
                    headers={"authorization": f"Bearer {account.token}"},
                    timeout=WITHIN_S,
                    trust_env=False,
                    verify=False,  # no TLS: the system's authorities, 40 ms a client, are not needed
                )
            )
            for name, account in listeners.accounts.items()
        }
        yield HTTP("HTTP", clients.__getitem__)


@asynccontextmanager
async def control_socket(listeners: Listeners) -> AsyncIterator[Door]:
    transport = httpx2.AsyncHTTPTransport(uds=listeners.control_socket, trust_env=False)

    async with httpx2.AsyncClient(base_url="http://localhost", transport=transport, timeout=WITHIN_S) as local:
        yield ControlSocket("control socket", lambda _account: local)


# ---------------------------------------------------------------- MQTT


class MQTT:
    """MQTT at QoS 1: what is refused is told at `inbox/{you}/refused`, or by the PUBACK of MQTT 5."""

    def __init__(self, name: str, client_of: Callable[[str], Awaitable[MQTTClient]], *, v5: bool) -> None:
        self.name = name
        self._client_of = client_of
        self._v5 = v5

    async def send(self, sent: Sent) -> Answer:
        client = await self._client_of(sent.by)
        if sent.operation is Operation.READ:
            return await self._read(client, sent)
        topic, payload = _topic(sent), sent.data or b""
        more: dict[str, Any] = {}
        if sent.created is not None or (sent.message_id is not None):
            if not self._v5:
                never("MQTT 3.1.1 has no user properties; a batch says it")
            given = {"created": sent.created, "messageID": sent.message_id}
            more["UserProperty"] = [(name, text) for name, text in given.items() if text is not None]
        if sent.expires_s is not None:
            if not self._v5:
                never("MQTT 3.1.1 has no message expiry")
            more["MessageExpiryInterval"] = int(sent.expires_s)
        try:
            await client.publish(topic, raw=payload, **more)
        except PublishRefused as refusal:
            return Refused({"code": refusal.told["code"], "detail": refusal.detail, "reason": refusal.value})
        return await self._told(client, sent.by) or Accepted()

    async def _told(self, client: MQTTClient, account: str) -> Refused | None:
        for message in await client.settle():
            if message.topic == f"inbox/{account}/refused":
                return Refused(message.value)
        return None

    async def _read(self, client: MQTTClient, sent: Sent) -> Answer:
        """By a call of the service that has the latest values: what retained messages say cannot be refused."""
        reference = f"read-{next(_numbers)}"
        topic = f"req/{sent.by}/rpc/values/latest/readProperty/{reference}"
        given = json.dumps({"thingID": sent.thing, "name": sent.name}).encode()
        try:
            await client.publish(topic, raw=given)
        except PublishRefused as refusal:
            return Refused({"code": refusal.told["code"], "detail": refusal.detail, "reason": refusal.value})
        for message in await client.settle():
            if message.topic == f"inbox/{sent.by}/refused":
                return Refused(message.value)
            if message.topic == f"inbox/{sent.by}/status/{reference}":
                return Accepted(message.value["output"]["value"])
        raise AssertionError("neither refused nor answered")


def _topic(sent: Sent) -> str:
    name = segment(sent.name)
    if len(name) > 10_000:
        never("no topic holds the name")
    agents = f"agents/{sent.by}"
    match sent.operation:
        case Operation.PROPERTY | Operation.EVENT:
            return f"{agents}/{'event' if sent.operation is Operation.EVENT else 'property'}/{sent.thing}/{name}"
        case Operation.VALUES:
            return f"{agents}/properties/{sent.thing}"
        case Operation.TD:
            if not sent.data:
                never("an empty description removes the Thing")
            return f"{agents}/td/{sent.thing}"
        case Operation.REMOVE:
            return f"{agents}/td/{sent.thing}"
        case Operation.REPORT:
            return f"{agents}/status/{name}"
        case Operation.CANCEL:
            if sent.reference is None:
                never("a request is cancelled by the caller's own reference")
            return f"req/{sent.by}/cancel/{segment(sent.reference)}"
        case Operation.INVOKE | Operation.WRITE | Operation.CALL:
            if not sent.thing.startswith("dtw:"):
                never("a topic names a Thing by its agent")
            twin = sent.thing.removeprefix("dtw:").replace(":", "/", 1)
            reference = segment(sent.reference or f"r-{next(_numbers)}")
            return f"req/{sent.by}/{_WORDS[sent.operation]}/{twin}/{name}/{reference}"
        case _:
            raise AssertionError(sent.operation)


@asynccontextmanager
async def _mqtt_clients(
    listeners: Listeners, *, v5: bool, id_: str
) -> AsyncIterator[Callable[[str], Awaitable[MQTTClient]]]:
    """A client of each account, made when it is first needed. None takes requests: its agent stays absent."""
    clients: dict[str, MQTTClient] = {}
    async with AsyncExitStack() as stack:

        async def client_of(name: str) -> MQTTClient:
            if name not in clients:
                account = listeners.accounts[name]
                client = MQTTClient(listeners.mqtt, name, account.token, f"{name}-{id_}", v5=v5)
                clients[name] = await stack.enter_async_context(client)
                for topic in ("refused", "batch", "status/+"):
                    await client.subscribe(f"inbox/{name}/{topic}", qos=1)
            return clients[name]

        yield client_of


def mqtt(name: str, *, v5: bool) -> "Opens":
    @asynccontextmanager
    async def opened(listeners: Listeners) -> AsyncIterator[Door]:
        async with _mqtt_clients(listeners, v5=v5, id_=name) as client_of:
            yield MQTT(name, client_of, v5=v5)

    return opened


# ---------------------------------------------------------------- batches


class Batch:
    """Store-and-forward: the publication stands between two others, which are stored whatever becomes of it."""

    def __init__(self, name: str, post: Callable[[str, bytes], Awaitable[Answer]]) -> None:
        self.name = name
        self._post = post

    async def send(self, sent: Sent) -> Answer:
        operation = _PUBLICATIONS.get(sent.operation)
        if operation is None:
            never("a batch holds properties and events")
        members: dict[str, Any] = {"v": 1, "operation": operation, "thingID": sent.thing, "name": sent.name}
        members |= {} if sent.created is None else {"created": sent.created}
        members |= {} if sent.message_id is None else {"messageID": sent.message_id}
        item = json.dumps(members).encode()
        if sent.data is not None:
            item = b'%s,"data":%s}' % (item[:-1], sent.data)
        return await self._post(sent.by, b"[%s]" % item)


def _reported(report: Any) -> Answer:
    """What a batch of one came to; its report says the code and the detail."""
    assert report["stored"] + report["duplicates"] + len(report["rejected"]) == 1
    return Refused(report["rejected"][0]) if report["rejected"] else Accepted()


@asynccontextmanager
async def http_batch(listeners: Listeners) -> AsyncIterator[Door]:
    async with httpx2.AsyncClient(base_url=listeners.http, timeout=WITHIN_S, trust_env=False, verify=False) as client:

        async def post(account: str, content: bytes) -> Answer:
            headers = {
                "authorization": f"Bearer {listeners.accounts[account].token}",
                "content-type": "application/json",
            }
            reply = await client.post("/agent/batch", content=content, headers=headers)
            return _reported(reply.json()) if reply.is_success else Refused(reply.json())

        yield Batch("HTTP batch", post)


def mqtt_batch(name: str, *, v5: bool) -> "Opens":
    @asynccontextmanager
    async def opened(listeners: Listeners) -> AsyncIterator[Door]:
        async with _mqtt_clients(listeners, v5=v5, id_=name) as client_of:

            async def post(account: str, content: bytes) -> Answer:
                client = await client_of(account)
                try:
                    await client.publish(f"agents/{account}/batch", raw=content)
                except PublishRefused as refusal:
                    return Refused({"code": refusal.told["code"], "detail": refusal.detail, "reason": refusal.value})
                for message in await client.settle():
                    if message.topic == f"inbox/{account}/batch":
                        return _reported(message.value)
                    if message.topic == f"inbox/{account}/refused":
                        return Refused(message.value)
                raise AssertionError("neither reported nor refused")

            yield Batch(name, post)

    return opened


# ---------------------------------------------------------------- web thing protocol


class WebThings:
    """The web thing protocol; JSON text goes into the message as it is."""

    name = "web thing protocol"

    def __init__(self, client_of: Callable[[str], WebThingClient], steps: Callable[[str], Awaitable[int]]) -> None:
        self._client_of = client_of
        self._steps = steps

    async def send(self, sent: Sent) -> Answer:
        client = self._client_of(sent.by)
        members: dict[str, Any] = {"name": sent.name}
        type_, member = "request", ""
        match sent.operation:
            case Operation.PROPERTY:
                type_, operation, member = "notification", "observeproperty", "value"
            case Operation.EVENT:
                type_, operation, member = "notification", "subscribeevent", "data"
            case Operation.TD:
                operation, member, members = "exposething", "td", {}
            case Operation.REMOVE:
                operation, members = "destroything", {}
            case Operation.INVOKE:
                operation, member = "invokeaction", "input"
            case Operation.WRITE:
                operation, member, members = "writeproperty", "value", {**members, "wait": 0}
            case Operation.CALL:
                operation, member = "callrpc", "input"
            case Operation.READ:
                operation = "readproperty"
            case Operation.CANCEL:
                operation, members = "cancelaction", {"actionID": sent.name}
            case Operation.REPORT:
                return await self._report(client, sent)
            case Operation.VALUES:
                never("a notification has one value")
        number = f"c{next(_numbers)}"
        message = {
            "thingID": sent.thing,
            "messageID": sent.message_id or number,
            "messageType": type_,
            "operation": operation,
            "correlationID": sent.reference or number,
            **members,
            **({} if sent.created is None else {"timestamp": sent.created}),
            **({} if sent.expires_s is None else {"expiresIn": sent.expires_s}),
        }
        await _write(client, message, member, sent.data)
        answer = await client.answered(str(message["correlationID"]), None)
        return Refused(answer["error"]) if "error" in answer else Accepted(answer.get("value"))

    async def _report(self, client: WebThingClient, sent: Sent) -> Answer:
        """Nobody answers an answer that is taken: its request goes on."""
        if sent.data is None or sent.data[:1] != b"{":
            never("a response has members")
        message = {
            "thingID": "pump-1",
            "messageID": f"c{next(_numbers)}",
            "messageType": "response",
            "operation": "invokeaction",
            "correlationID": sent.name,
        }
        before = await self._steps(sent.name)
        await _write(client, message, "status", sent.data)
        with anyio.fail_after(WITHIN_S):
            while await self._steps(sent.name) == before:
                for correlation in (sent.name, None):
                    if client.has_answer(correlation):
                        return Refused((await client.answered(correlation))["error"])
                await anyio.sleep(0.002)
        return Accepted()


async def _write(client: WebThingClient, message: dict[str, Any], member: str, data: bytes | None) -> None:
    text = json.dumps(message).encode()
    if member and data is not None:
        text = b'%s,"%s":%s}' % (text[:-1], member.encode(), data)
    try:
        await client.socket.send(text.decode())
    except UnicodeDecodeError:
        never("a text frame is UTF-8")


@asynccontextmanager
async def web_things(listeners: Listeners) -> AsyncIterator[Door]:
    async with _per_account(
        listeners.accounts, lambda name: web_thing_client(listeners, listeners.accounts[name])
    ) as client_of:
        yield WebThings(client_of, listeners.steps)


# ---------------------------------------------------------------- messaging node


class Node:
    """The messaging node, for who uses Things; a reporter publishes objects of its own."""

    name = "messaging node"

    def __init__(self, client_of: Callable[[str], NodeClient]) -> None:
        self._client_of = client_of

    async def send(self, sent: Sent) -> Answer:
        if sent.expires_s is not None or sent.reference is not None:
            never("messages have neither an expiry nor a reference of their own")
        match sent.operation:
            case Operation.INVOKE:
                type_, naming, member = "execute", "method", "params"
            case Operation.WRITE:
                type_, naming, member = "update", "attribute", "value"
            case Operation.READ:
                type_, naming, member = "read", "attribute", ""
            case Operation.CALL:
                never("a call is an action here")
            case Operation.CANCEL:
                never("no message takes another back")
            case _:
                never("a reporter publishes objects of its own")
        if not sent.thing.startswith("dtw:"):
            never("an address names a Thing by its agent")
        client = self._client_of(sent.by)
        address = f"thing://localhost/{sent.thing.removeprefix('dtw:').replace(':', '/', 1)}"
        body = json.dumps({naming: sent.name}).encode()
        if member and sent.data is not None:
            body = b'%s,"%s":%s}' % (body[:-1], member.encode(), sent.data)
        number = next(_numbers)
        message = {"id": number, "type": type_, "from": f"{client.runtime}/sm", "to": address}
        await client.socket.send((b'%s,"body":%s}' % (json.dumps(message).encode()[:-1], body)).decode())
        with anyio.fail_after(WITHIN_S):
            while (answer := json.loads(await client.socket.recv()))["type"] != "response" or (
                answer["id"] not in (number, 0, "0", "", None)
            ):
                pass
        found = answer["body"]
        if found["code"] in (100, 200):
            return Accepted(found.get("value") if sent.operation is Operation.READ else None)
        return Refused({"code": found["error"], "detail": found["description"]})


@asynccontextmanager
async def node(listeners: Listeners) -> AsyncIterator[Door]:
    async with _per_account(
        ("ann", "vic"), lambda name: node_client(listeners, name, token=listeners.accounts[name].token)
    ) as client_of:
        yield Node(client_of)


# ---------------------------------------------------------------- SDK


class SDK:
    """`skep.Agent` and `skep.Consumer`, as a program of a user calls them."""

    name = "SDK"

    def __init__(self, agent_of: Callable[[str], "_Speaker"], consumer_of: Callable[[str], Consumer]) -> None:
        self._agent_of = agent_of
        self._consumer_of = consumer_of

    async def send(self, sent: Sent) -> Answer:
        if sent.message_id is not None:
            never("the SDK makes message ids itself")
        try:
            match sent.operation:
                case Operation.PROPERTY | Operation.EVENT | Operation.TD | Operation.REMOVE:
                    return await self._publish(self._agent_of(sent.by), sent)
                case Operation.VALUES:
                    never("the SDK publishes one value at a time")
                case Operation.REPORT:
                    never("a status is what a handler of the program comes to")
                case _:
                    return await self._ask(self._consumer_of(sent.by), sent)
        except SkepError as error:
            # What the SDK refuses itself it says in words of its own, for whoever wrote the program.
            return Refused(problem_of(error) or {"code": error.code})

    async def _publish(self, speaker: "_Speaker", sent: Sent) -> Answer:
        agent = speaker.agent
        speaker.problems.clear()
        match sent.operation:
            case Operation.TD:
                assert sent.data is not None
                agent.expose(sent.thing, sent.data)
            case Operation.REMOVE:
                agent.withdraw(sent.thing)
            case _:
                if sent.by != "pumps" or sent.thing.startswith("dtw:"):
                    never("an agent publishes for Things that it has described")
                if sent.data is None:
                    never("a Python value is always a value")
                publish = agent.publish if sent.operation is Operation.PROPERTY else agent.event
                value, created = _value(sent.data), _moment(sent.created)
                await publish(sent.thing, sent.name, value, created=created, undeclared=True)
        await agent.flush(WITHIN_S)
        for problem in speaker.problems:
            return Refused({"code": problem.code, "detail": problem.detail})
        return Accepted()

    async def _ask(self, consumer: Consumer, sent: Sent) -> Answer:
        more: Any = {"expires_s": sent.expires_s, "reference": sent.reference}
        data = None if sent.data is None else _value(sent.data)
        match sent.operation:
            case Operation.INVOKE:
                if sent.data == b"null":
                    never("None is no input")
                await consumer.invoke(sent.thing, sent.name, data, **more)
            case Operation.WRITE:
                if sent.data is None:
                    never("a Python value is always a value")
                await consumer.write(sent.thing, sent.name, data, wait_s=0, **more)
            case Operation.CALL:
                if sent.data is None:
                    never("a call without input sends null")
                await consumer.call(sent.thing, sent.name, data)
            case Operation.CANCEL:
                await consumer.cancel(sent.name)
            case Operation.READ:
                return Accepted(await consumer.thing(sent.thing).read(sent.name))
            case _:
                raise AssertionError(sent.operation)
        return Accepted()


class _Speaker:
    """An agent and what it was told of refusals."""

    def __init__(self, listeners: Listeners, account: Account) -> None:
        self.problems: list[Problem] = []
        self.agent = Agent(listeners.mqtt_url, account.name, account.token, on_problem=self.problems.append)
        if account.name == "pumps":
            self.agent.expose("pump-1", TD)


def _value(data: bytes) -> Any:
    try:
        value = json.loads(data, parse_constant=never)
    except ValueError:
        never("a Python value is always JSON")
    if json.dumps(value, separators=(",", ":")).encode() != data.replace(b" ", b""):
        never("a Python value is always JSON")
    return value


def _moment(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return to_datetime(parse_time(text))
    except (SkepError, OverflowError):
        never("a Python time is always one")


@asynccontextmanager
async def sdk(listeners: Listeners) -> AsyncIterator[Door]:
    @asynccontextmanager
    async def speaking(name: str) -> AsyncIterator[_Speaker]:
        speaker = _Speaker(listeners, listeners.accounts[name])
        async with speaker.agent:
            yield speaker

    async with (
        _per_account(("pumps", "ann"), speaking) as agent_of,
        _per_account(
            ("ann", "vic"), lambda name: Consumer(listeners.http, token=listeners.accounts[name].token)
        ) as consumer_of,
    ):
        yield SDK(agent_of, consumer_of)


# ---------------------------------------------------------------- all of them


@asynccontextmanager
async def _per_account(
    names: Iterable[str], open_one: Callable[[str], AbstractAsyncContextManager[T]]
) -> AsyncIterator[Callable[[str], T]]:
    """Something of each account. All at once: task groups end in the reverse order of their beginning."""
    async with AsyncExitStack() as stack:
        found = {name: await stack.enter_async_context(open_one(name)) for name in names}
        yield found.__getitem__


Opens = Callable[[Listeners], AbstractAsyncContextManager[Door]]

DOORS: dict[str, Opens] = {
    "HTTP": http,
    "HTTP batch": http_batch,
    "control socket": control_socket,
    "MQTT 3.1.1": mqtt("MQTT 3.1.1", v5=False),
    "MQTT 5": mqtt("MQTT 5", v5=True),
    "MQTT 3.1.1 batch": mqtt_batch("MQTT 3.1.1 batch", v5=False),
    "MQTT 5 batch": mqtt_batch("MQTT 5 batch", v5=True),
    "amqtt": mqtt("amqtt", v5=False),
    "amqtt batch": mqtt_batch("amqtt batch", v5=False),
    "web thing protocol": web_things,
    "messaging node": node,
    "SDK": sdk,
}
"""The doors by name; those of amqtt lead into a runtime with that engine."""


def engine_of(door: str) -> str:
    """The MQTT engine of the runtime that a door leads into."""
    return "amqtt" if door.startswith("amqtt") else "native"
