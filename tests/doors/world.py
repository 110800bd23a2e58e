"""The runtimes behind the doors, and what a message leaves in their stores."""

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from authz.documents import RuleDocument
from tests.bindings.mqtt.support import Client as MQTTClient
from tests.doors.contract import Accepted, Answer, Door, Listeners, NotExpressible, Refused, Sent
from tests.doors.doors import DOORS, engine_of, http
from tests.doors.table import ABSENT, HIDDEN, TD, TWIN, Case, Description, Left, Reading, Request
from tests.support import Skep, skep
from things.addresses import TwinID, is_twin
from things.delivery import Reason
from things.errors import BadAddress
from things.identity import AccountType, Principal, Role
from things.parsing import parsed
from things.records import Entry, HistoryQuery, LedgerQuery, LedgerRow, Row
from things.td import ThingDescription
from things.times import rfc3339

RECENT = 10
"""Requests that are looked at: a case makes two at most."""
NOW_US = 60_000_000
"""What was created since has no time of its own."""
OWNER = Principal(account="skep", type=AccountType.SERVICE, role=Role.ADMIN, login_id="test")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a door answered a case, and what it left; `reason` where the door cannot say it."""

    answer: Answer | None = None
    left: Sequence[Left] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class _Stores:
    """Where the stores stood."""

    last_row: int
    requests: Mapping[str, LedgerRow]
    entry: Entry | None


@dataclass(slots=True)
class House:
    """One runtime with its accounts and Things."""

    skep: Skep
    listeners: Listeners
    watchers: Sequence[MQTTClient] = ()
    """Who has subscribed to everything."""
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def outcome(self, door: Door, case: Case, reference: Door) -> Outcome:
        """Send a case through a door, and before it what it needs through the door of reference."""
        number = str(next(self.numbers))
        for first in case.first:
            taken = await reference.send(await self._filled(first, number))
            assert isinstance(taken, Accepted), (case.title, taken)
        sent = await self._filled(case.sent, number)
        if case.is_repeat and isinstance(await _try(door, sent), Refused):
            raise AssertionError(case.title)
        before = await self._stores(sent)
        answer = await _try(door, sent)
        if isinstance(answer, NotExpressible):
            return Outcome(reason=str(answer))
        left = await self._left(before, sent)
        if isinstance(answer, Refused):
            answer = _general(answer, sent, case.sent)
        return Outcome(answer, left)

    async def _filled(self, sent: Sent, number: str) -> Sent:
        """With the number of the try, and the id of the request that was made last."""
        name = sent.name
        if name == "{request}":
            (newest,) = await self.skep.running.stores.twin.ledger.query(LedgerQuery(limit=1))
            name = newest.request_id

        def numbered(text: str | None) -> str | None:
            return None if text is None else text.replace("{n}", number)

        return replace(
            sent,
            name=name,
            thing=sent.thing.replace("{n}", number),
            message_id=numbered(sent.message_id),
            reference=numbered(sent.reference),
        )

    async def _stores(self, sent: Sent) -> _Stores:
        twin = self.skep.running.stores.twin
        requests = await twin.ledger.query(LedgerQuery(limit=RECENT))
        try:
            entry = twin.directory.get(sent.thing if is_twin(sent.thing) else str(TwinID.of(sent.by, sent.thing)))
        except BadAddress:
            entry = None
        return _Stores(twin.history.last_row, {row.request_id: row for row in requests}, entry)

    async def _left(self, before: _Stores, sent: Sent) -> Sequence[Left]:
        after = await self._stores(sent)
        rows = await self.skep.running.stores.twin.history.read(HistoryQuery(after_row=before.last_row))
        found: list[Left] = [_reading(row) for row in rows]
        for row in reversed(tuple(after.requests.values())):
            if row != before.requests.get(row.request_id) and row.reason is not Reason.SUPERSEDED:
                found.append(_request(row))
        if before.entry is not None and after.entry is None:
            found.append(Description(title=None))
        elif after.entry is not None and after.entry != before.entry:
            found.append(Description(title=after.entry.td.title))
        return found


async def _try(door: Door, sent: Sent) -> Answer | NotExpressible:
    try:
        return await door.send(sent)
    except NotExpressible as cannot:
        return cannot


def _general(answer: Refused, sent: Sent, asked: Sent) -> Refused:
    """A refusal without the numbers and ids that were filled in."""
    if "detail" not in answer.said:
        return answer
    detail = str(answer.said["detail"])
    for name in ("name", "thing", "reference"):
        filled, text = getattr(sent, name), getattr(asked, name)
        detail = detail.replace(filled, text) if filled != text else detail
    return Refused({**answer.said, "detail": detail})


def _reading(row: Row) -> Reading:
    return Reading(
        name=row.name,
        value=row.value.decode(),
        quality=row.quality,
        created="now" if abs(row.received - row.created) < NOW_US else rfc3339(row.created),
        source_time=None if row.source_time is None else rfc3339(row.source_time),
    )


def _request(row: LedgerRow) -> Request:
    return Request(
        name=row.name,
        input=row.input,
        state=row.state.value,
        output=row.output,
        error=row.error,
        progress=row.progress,
    )


@dataclass(slots=True)
class World:
    """All doors, and what was found at them."""

    houses: Mapping[str, House]
    references: Mapping[str, Door]
    doors: Mapping[str, Door]
    found: dict[str, Mapping[str, Outcome]] = field(default_factory=dict)

    async def outcomes(self, case: Case) -> Mapping[str, Outcome]:
        """How every door answers a case; asked once."""
        if case.title not in self.found:
            self.found[case.title] = {
                name: await self.houses[engine_of(name)].outcome(door, case, self.references[engine_of(name)])
                for name, door in self.doors.items()
            }
        return self.found[case.title]


@asynccontextmanager
async def opened(home: Path, **sections: Any) -> AsyncIterator[House]:
    """A runtime with agents `pumps`, `valves` (which never listens) and `tanks` (whose Thing is hidden from viewers),
    manager `ann` and viewer `vic`."""
    async with skep(home, **sections) as running:
        accounts = {name: await running.add(name, "agent") for name in ("pumps", "valves", "tanks")}
        accounts |= {"ann": await running.add("ann", role="manager"), "vic": await running.add("vic", role="viewer")}
        stores = running.running.stores
        for thing in (TWIN, ABSENT, HIDDEN):
            agent = TwinID.parse(thing).account
            await stores.twin.directory.put(thing, ThingDescription.of(TD, agent=True), agent=agent)
        hide = {"id": "hidden", "effect": "deny", "thing": HIDDEN, "accounts": ["vic"]}
        await stores.authorizer.put_rule(parsed(RuleDocument, hide), OWNER)

        async def steps(request_id: str) -> int:
            row = await stores.twin.ledger.get(request_id)
            return 0 if row is None else len(row.transitions)

        listeners = Listeners(
            http=running.http,
            mqtt=running.mqtt_address,
            mqtt_url=running.mqtt,
            control_socket=str(home / "control.sock"),
            accounts=accounts,
            steps=steps,
        )
        async with AsyncExitStack() as stack:
            watchers = [
                await stack.enter_async_context(_watching(listeners, v5=v5))
                for v5 in ((False,) if sections.get("mqtt", {}).get("engine") == "amqtt" else (False, True))
            ]
            yield House(running, listeners, watchers)


@asynccontextmanager
async def _watching(listeners: Listeners, *, v5: bool) -> AsyncIterator[MQTTClient]:
    token = listeners.accounts["ann"].token
    async with MQTTClient(listeners.mqtt, "ann", token, f"watcher-{v5}", v5=v5) as client:
        await client.subscribe("things/#")
        yield client


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """One runtime with each MQTT engine, and every door into them."""
    async with AsyncExitStack() as stack:
        houses = {
            engine: await stack.enter_async_context(opened(folder / engine, mqtt={"engine": engine}))
            for engine in ("native", "amqtt")
        }
        references = {name: await stack.enter_async_context(http(house.listeners)) for name, house in houses.items()}
        doors = {
            name: await stack.enter_async_context(open_door(houses[engine_of(name)].listeners))
            for name, open_door in DOORS.items()
        }
        yield World(houses, references, doors)
