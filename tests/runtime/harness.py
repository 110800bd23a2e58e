"""The runtime over real stores in a temporary home, without bindings: tests speak as a binding would."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from gateway.config import Config
from gateway.core_settings import core_settings
from runtime.clocks import IDs, SteadyClock, wall_clock
from runtime.core import Clocks, Runtime, Storage
from runtime.ports import Publication
from runtime.services.requests import RequestsService
from tests.runtime.doubles import Recorded, RecordingSession, agent_principal, principal
from things.addresses import Address, Kind, TwinID
from things.decisions import Context, Decision
from things.delivery import DeliveryStatus
from things.errors import Unauthenticated
from things.identity import Principal, Role, ShownCertificate
from things.jsontext import encode
from things.messages import JSONValue, Message, Operation, Origin
from things.places import Place
from twin.store import Twin, open_twin

PUMP = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Pump",
    "properties": {
        "flow": {"type": "number", "minimum": 0, "maximum": 100, "readOnly": True},
        "target": {"type": "number", "minimum": 0, "maximum": 100},
    },
    "events": {"alarm": {"data": {"type": "string"}}},
    "actions": {
        "setSpeed": {"input": {"type": "integer", "minimum": 0, "maximum": 10}},
        "now": {"skep:expires": "PT0S"},
        "brief": {"skep:expires": 0.3},
    },
}


class RoleOnly:
    """Rights by role alone: enough to see who is asked."""

    version = 0
    is_conditional = False

    def is_uniform(self, principal: Principal, thing_id: str) -> bool:
        return True

    def decide(
        self, principal: Principal, operation: Operation, address: Address, context: Context | None = None
    ) -> Decision:
        allowed = {
            Role.NONE: (),
            Role.VIEWER: (Operation.READ, Operation.OBSERVE, Operation.SUBSCRIBE, Operation.HISTORY),
            Role.AGENT: (
                Operation.PUBLISH_EVENT,
                Operation.PUBLISH_PROPERTY,
                Operation.PUBLISH_TD,
                Operation.REMOVE_TD,
                Operation.REPORT_STATUS,
            ),
            Role.OPERATOR: (Operation.READ, Operation.INVOKE_ACTION, Operation.CANCEL, Operation.CALL_RPC),
        }.get(Role(principal.role), tuple(Operation))
        mine = not operation.startswith("publish") or address.thing_id.startswith(f"dtw:{principal.account}:")
        return Decision(allowed=operation in allowed and mine, rule="test")

    def could_allow(
        self,
        principal: Principal,
        operation: Operation,
        *,
        agent: str | None,
        thing: str | None,
        kind: Kind,
        name: str | None,
    ) -> bool:
        return self.decide(principal, operation, Address(f"dtw:{agent}:{thing}", kind, name)).allowed


class AllStand:
    """Nobody logs in here, and whoever speaks goes on being who they are."""

    async def login(self, account: str, secret: str, *, source: str | None) -> Principal:
        raise Unauthenticated

    def verify(self, token: str) -> Principal:
        raise Unauthenticated

    def identity_of(self, account: str) -> str | None:
        return None

    async def by_certificate(self, certificate: ShownCertificate) -> Principal:
        raise Unauthenticated

    def standing(self, principal: Principal, *, after_logout: bool = False) -> Principal | None:
        return principal


@dataclass(slots=True)
class House:
    """A runtime under test and the ways to speak to it."""

    runtime: Runtime
    twin: Twin

    def message(
        self, operation: Operation, who: Principal, thing_id: str, name: str, data: JSONValue, **more: Any
    ) -> Message:
        return Message(
            operation=operation, principal=who, thing_id=thing_id, name=name, data=data, received=wall_clock(), **more
        )

    async def publish_td(self, agent: str, thing: str, td: dict[str, Any] = PUMP) -> str:
        thing_id = str(TwinID.of(agent, thing))
        text = encode(td).decode()
        await self.runtime.handle(self.message(Operation.PUBLISH_TD, agent_principal(agent), thing_id, "", text))
        return thing_id

    async def invoke(
        self, thing_id: str, name: str, data: JSONValue, *, caller: str = "alice", **more: Any
    ) -> DeliveryStatus:
        return await self.runtime.handle(
            self.message(Operation.INVOKE_ACTION, principal(caller), thing_id, name, data, **more)
        )

    async def write(
        self, thing_id: str, name: str, data: JSONValue, *, caller: str = "alice", **more: Any
    ) -> DeliveryStatus:
        return await self.runtime.handle(
            self.message(Operation.WRITE_PROPERTY, principal(caller), thing_id, name, data, **more)
        )

    async def call(
        self, thing_id: str, name: str, data: JSONValue, *, caller: str = "alice", session: str = ""
    ) -> DeliveryStatus:
        return await self.runtime.handle(
            self.message(
                Operation.CALL_RPC,
                principal(caller),
                thing_id,
                name,
                data,
                origin=Origin(binding="test", session_id=session),
            )
        )

    async def cancel(self, request_id: str, *, caller: str = "alice", role: str = Role.OPERATOR) -> DeliveryStatus:
        return await self.runtime.handle(self.message(Operation.CANCEL, principal(caller, role), "", request_id, None))

    async def report(self, agent: str, request_id: str, **status: JSONValue) -> DeliveryStatus:
        return await self.runtime.handle(
            self.message(Operation.REPORT_STATUS, agent_principal(agent), "", request_id, status)
        )

    async def event(self, thing_id: str, name: str, data: JSONValue, **more: Any) -> DeliveryStatus:
        who = agent_principal(TwinID.parse(thing_id).account)
        return await self.runtime.handle(self.message(Operation.PUBLISH_EVENT, who, thing_id, name, data, **more))

    async def value(self, thing_id: str, name: str, data: JSONValue, **more: Any) -> DeliveryStatus:
        who = agent_principal(TwinID.parse(thing_id).account)
        return await self.runtime.handle(self.message(Operation.PUBLISH_PROPERTY, who, thing_id, name, data, **more))

    def session(self, who: Principal, *, room: int | None = None) -> RecordingSession:
        """Open a session."""
        session = RecordingSession(f"{who.account}-{IDs()()}", who, room=room, sessions=self.runtime.sessions)
        self.runtime.sessions.opened(session)
        return session

    def agent(self, account: str, *, room: int | None = None) -> RecordingSession:
        """Open an agent's session that takes requests."""
        session = self.session(agent_principal(account), room=room)
        self.runtime.sessions.take_requests(session)
        return session

    async def until(self, condition: Any, within_s: float = 30) -> None:
        """Let the loop run until `condition()` holds."""
        with anyio.fail_after(within_s):
            while not condition():  # noqa: ASYNC110 - any condition, under one deadline
                await anyio.sleep(0.002)


@asynccontextmanager
async def house(
    home: Path,
    config: Config | None = None,
    *,
    now: Callable[[], int] = wall_clock,
    steady: Callable[[], int] | None = None,
) -> AsyncIterator[House]:
    """A started runtime, on clocks of the test's own if it wants."""
    async with open_twin(home, clock=now) as twin:

        def describe(thing_id: str, who: Principal, place: Place | None) -> Publication | None:
            entry = twin.directory.get(thing_id)
            if entry is None:
                return None
            return Publication(
                twin=TwinID.parse(thing_id),
                thing_id=thing_id,
                kind=Kind.TD,
                name="",
                value=None,
                payload=entry.td.text,
                created=entry.modified,
            )

        stores = Storage(directory=twin.directory, values=twin.values, history=twin.history, ledger=twin.ledger)
        authorizer = RoleOnly()
        runtime = Runtime(
            settings=core_settings(config or Config()),
            storage=stores,
            authenticator=AllStand(),
            authorizer=authorizer,
            clocks=Clocks(now=now, steady=steady or SteadyClock(), new_id=IDs()),
            audit=Recorded(),
            assess=lambda reading, message, entry: 0,
            record_presence=lambda agent, seen: None,
            describe=describe,
        )
        runtime.services.add(RequestsService(twin.ledger, authorizer))
        async with anyio.create_task_group() as tasks:

            async def serve(*, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
                await runtime.serve(task_status=task_status)

            await tasks.start(serve)
            try:
                yield House(runtime, twin)
            finally:
                tasks.cancel_scope.cancel()
