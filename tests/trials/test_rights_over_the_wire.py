"""Random rights, asked over both protocols on every path, against the model that the decisions are tried against.

What a client may do is worked out by `tests.authz.model` from the same rules; what it can do is tried with requests,
subscriptions, publishes, live deliveries, retained values, resumed streams and other people's requests.
"""

import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiomqtt
import anyio
import httpx2
import pytest

from authz.documents import RuleDocument
from authz.policy.sets import set_document
from tests.authz.model import Case, allowed
from tests.authz.test_model import SECRETS, random_rule
from tests.support import Account, Skep, skep
from tests.trials.process import mqtt_client
from things.identity import AccountType, Principal, Role
from things.messages import Message, Operation
from things.parsing import parsed
from things.td import ThingDescription

pytestmark = pytest.mark.anyio

LONG = int(os.environ.get("SKEP_TRIAL_RIGHTS", "40"))
ROLES = {
    "pump": ("agent", "agent"),
    "lamp": ("agent", "agent"),
    "rollup": ("service", "service"),
    "nada": ("consumer", "none"),
    "vera": ("consumer", "viewer"),
    "otto": ("consumer", "operator"),
    "mana": ("consumer", "manager"),
    "root": ("consumer", "admin"),
}
"""Accounts with type and role."""
NOBODY_S = "dtw:-:-"
THINGS = ["dtw:pump:1", "dtw:pump:2", "dtw:lamp:1", "dtw:rollup:table"]
SERIES = [("property", "speed"), ("property", "secret"), ("event", "alarm")]
TD: dict[str, Any] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Thing",
    "properties": {"speed": {"type": "integer"}, "secret": {"type": "integer"}},
    "events": {"alarm": {"data": {"type": "integer"}}},
    "actions": {"setSpeed": {"input": {"type": "integer"}}},
}
DIRECTORY, REQUESTS, HISTORY = "dtw:directory:things", "dtw:skep:requests", "dtw:history:readings"


@dataclass(slots=True)
class Round:
    """One set of rules, and everybody tried under it."""

    runtime: Skep
    accounts: dict[str, Account]
    rules: list[dict[str, Any]]
    number: int
    with_policies: bool
    cases: int = 0
    permitted: int = 0
    differences: list[str] = field(default_factory=list)
    paths: "Counter[str]" = field(default_factory=Counter)
    values: int = 0

    # ------------------------------------------------------------ the model's side

    def may(self, account: str, operation: str, thing: str, kind: str | None = None, name: str | None = None) -> bool:
        type_, role = ROLES[account]
        case = Case(account, type_, role, operation, thing, kind, name, 12)
        return allowed(self.rules, case, with_policies=self.with_policies)

    def compare(self, path: str, account: str, about: str, got: object, wanted: object) -> None:
        """Count one case."""
        self.cases += 1
        self.paths[path] += 1
        self.permitted += bool(wanted)
        if got != wanted:
            self.differences.append(f"{path}: {account} {about}: {got!r}, the model says {wanted!r}")

    def _refusal(self, account: str, thing: str) -> int:
        """How a refusal looks: what cannot even be read is unknown."""
        return 403 if ROLES[account][1] == "none" or self.may(account, "read", thing) else 404

    # ------------------------------------------------------------ HTTP

    async def over_http(self, account: str) -> None:
        async with self._http(account) as client:
            for thing in THINGS:
                for name in ("speed", "secret"):
                    reply = await client.get(f"/things/{thing}/properties/{name}")
                    self._answered(
                        "read", account, thing, reply, self.may(account, "read", thing, "property", name), 200
                    )
                    reply = await client.get(f"/things/{thing}/history?kind=property&name={name}&limit=1")
                    may = self.may(account, "history", thing, "property", name)
                    self._answered("history", account, thing, reply, may, 200)
                reply = await client.get(f"/things/{thing}/history")
                self._answered("history", account, thing, reply, self.may(account, "history", thing), 200)
                if reply.is_success:  # a listing, trimmed to what may be seen
                    got = {(item["kind"], item["name"]) for item in reply.json()["items"]}
                    series = {(kind, name) for kind, name in SERIES if self.may(account, "history", thing, kind, name)}
                    self.compare("history rows", account, thing, got, series)
                await self._asks(client, account, thing)
            listed = {td["id"] for td in (await client.get("/things")).json() if "id" in td} & set(THINGS)
            readable = {thing for thing in THINGS if self.may(account, "read", thing)}
            may_list = self.may(account, "read", DIRECTORY)
            self.compare("listing", account, "", listed, readable if may_list else set())
            await self._publishes_own(client, account)
            await self._resumes(client, account)
            await self._pries(client, account)

    async def _asks(self, client: httpx2.AsyncClient, account: str, thing: str) -> None:
        reference = {"idempotency-key": f"h-{self.number}-{thing}"}
        reply = await client.post(f"/things/{thing}/actions/setSpeed", content="3", headers=reference)
        self._answered("invoke", account, thing, reply, self.may(account, "invoke_action", thing, "action", "setSpeed"))
        headers = {"idempotency-key": f"hw-{self.number}-{thing}", "prefer": "wait=0"}
        reply = await client.put(f"/things/{thing}/properties/speed", content="3", headers=headers)
        self._answered("write", account, thing, reply, self.may(account, "write_property", thing, "property", "speed"))
        reply = await client.post(f"/rpc/{thing}/setSpeed", content="3")
        self._answered("rpc", account, thing, reply, self.may(account, "call_rpc", thing, "action", "setSpeed"), 503)

    def _answered(
        self, path: str, account: str, thing: str, reply: httpx2.Response, wanted: bool, success: int | None = None
    ) -> None:
        got = reply.status_code
        if success is None and reply.is_success:
            got, success = 200, 200
        self.compare(path, account, thing, got, success if wanted else self._refusal(account, thing))
        if wanted is False:
            self.permitted -= 1

    async def _publishes_own(self, client: httpx2.AsyncClient, account: str) -> None:
        thing = {"rollup": "table"}.get(account, "1")
        reply = await client.post(f"/agent/things/{thing}/properties", content='{"speed": 4}')
        may = self.may(account, "publish_property", f"dtw:{account}:{thing}", "property", "speed")
        self.compare("publish", account, thing, reply.is_success, may)

    async def _resumes(self, client: httpx2.AsyncClient, account: str) -> None:
        """With the event id of somebody else's stream: the very first there is."""
        reply = await client.get("/stream?after=0&wait=0&limit=1000")
        got = (
            {(i["thingID"], i["kind"], i["name"]) for i in reply.json().get("items", ())} if reply.is_success else set()
        )
        series = {
            (thing, kind, name)
            for thing in THINGS
            for kind, name in SERIES
            if self.may(account, "history", thing) and self.may(account, "history", thing, kind, name)
        }
        if not reply.is_success:  # nothing may be subscribed to at all, or no history may be read at all
            series = series if self.may(account, "read", HISTORY) and self._sees_anything(account) else set()
        self.compare("resume", account, str(reply.status_code), got, series)

    def _sees_anything(self, account: str) -> bool:
        kinds = {"event": "subscribe", "property": "observe", "td": "read", "action": "invoke_action"}
        guesses = [*THINGS, f"dtw:{account}:any"]
        return any(self.may(account, operation, thing, kind) for thing in guesses for kind, operation in kinds.items())

    async def _pries(self, client: httpx2.AsyncClient, account: str) -> None:
        """Into a request of somebody else, and into the inbox beyond its own."""
        row = await self._ledger.by_reference("root", f"known-{self.number}")
        assert row is not None
        reply = await client.get(f"/requests/{row.request_id}")
        may = self.may(account, "read", REQUESTS, "action", "readRequest") and (
            account in ("root", row.agent)
            # A hidden Thing is hidden from managers here too.
            or (self.may(account, "manage", REQUESTS) and self.may(account, "read", row.thing_id))
        )
        self.compare("request", account, row.thing_id, reply.is_success, may)
        reply = await client.get("/inbox?after=0&limit=1000")
        mine = True
        for status in reply.json().get("items", ()) if reply.is_success else ():
            about = await self._ledger.get(status["requestID"])
            mine = mine and about is not None and about.caller == account
        self.compare("inbox", account, "", mine, True)

    # ------------------------------------------------------------ MQTT

    async def over_mqtt(self, account: str) -> None:
        async with self._mqtt(account) as client:
            for thing in THINGS:
                levels = thing.removeprefix("dtw:").replace(":", "/")
                for kind, name in SERIES:
                    operation = "observe" if kind == "property" else "subscribe"
                    may = self.may(account, operation, thing, kind, name)
                    granted = await client.subscribe(f"things/{levels}/{kind}/{name}", qos=1)
                    # A Thing that is hidden is answered as one that nobody has, and gives nothing (`deliveries`);
                    # whether it is never shown hangs on more than this moment where policies have a say.
                    asks = may or (
                        not self.may(account, "read", thing) and self.may(account, operation, NOBODY_S, kind, name)
                    )
                    if may or not self.with_policies:
                        self.compare("subscribe", account, f"{thing} {name}", granted[0] == 1, asks)
                    if kind == "property" and may:
                        await self._gets_retained(client, account, f"things/{levels}/{kind}/{name}")
                    await client.unsubscribe(f"things/{levels}/{kind}/{name}")
                for kind, name, operation in (
                    ("action", "setSpeed", "invoke_action"),
                    ("property", "speed", "write_property"),
                ):
                    reference = f"m-{self.number}-{kind}-{levels.replace('/', '-')}"
                    await client.publish(f"req/{account}/{kind}/{levels}/{name}/{reference}", "3", qos=1)
                    row = await self._ledger.by_reference(account, reference)
                    self.compare(
                        f"mqtt {operation}",
                        account,
                        thing,
                        row is not None,
                        self.may(account, operation, thing, kind, name),
                    )
            for other in ROLES:
                granted = await client.subscribe(f"inbox/{other}/#", qos=1)
                self.compare("foreign inbox", account, other, granted[0] == 1, other == account)
        for thing in THINGS:
            await self._forges(account, thing)

    async def _gets_retained(self, client: aiomqtt.Client, account: str, topic: str) -> None:
        came = ""
        with anyio.move_on_after(5):
            came = str((await anext(aiter(client.messages))).topic)
        self.compare("retained", account, topic, came, topic)

    async def _forges(self, account: str, thing: str) -> None:
        """Publish for any Thing, also for those of others: what counts is what the twin then says."""
        levels = thing.removeprefix("dtw:").split(":")
        self.values += 1
        number = 1_000_000 * (self.number + 1) + self.values
        with suppress(aiomqtt.MqttError):
            async with self._mqtt(account) as client:
                await client.publish(f"agents/{levels[0]}/property/{levels[1]}/secret", json.dumps(number), qos=1)
        value = self.runtime.running.stores.twin.values.get(thing, "property", "secret")  # type: ignore[arg-type]
        taken = value is not None and value.value == number
        self.compare(
            "mqtt publish", account, thing, taken, self.may(account, "publish_property", thing, "property", "secret")
        )

    async def deliveries(self) -> None:
        """Everybody asks for everything; then every series speaks once."""
        heard: dict[str, set[tuple[str, str, str]]] = {account: set() for account in ROLES}
        last = anyio.Event()

        async def listens(account: str, *, task_status: anyio.abc.TaskStatus[None]) -> None:
            async with self._mqtt(account) as client:
                await client.subscribe("things/#", qos=1)
                await client.subscribe(f"inbox/{account}/#", qos=1)
                task_status.started()
                async for message in client.messages:
                    levels = str(message.topic).split("/")
                    if levels[0] == "things" and not message.retain and levels[3] in ("property", "event"):
                        heard[account].add((f"dtw:{levels[1]}:{levels[2]}", levels[3], levels[4]))

        async with anyio.create_task_group() as tasks:
            for account in ROLES:
                await tasks.start(listens, account)
            for thing in THINGS:
                for kind, name in SERIES:
                    await publish(self.runtime, thing, kind, name, self.number)
            with anyio.move_on_after(10):
                while any(self._hearing(account) - heard[account] for account in ROLES):  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            await anyio.sleep(0.2)  # and nothing else comes
            last.set()
            tasks.cancel_scope.cancel()
        for account in ROLES:
            for thing in THINGS:
                for kind, name in SERIES:
                    one = (thing, kind, name)
                    self.compare("delivery", account, str(one), one in heard[account], one in self._hearing(account))

    def _hearing(self, account: str) -> set[tuple[str, str, str]]:
        return {
            (thing, kind, name)
            for thing in THINGS
            for kind, name in SERIES
            if self.may(account, "observe" if kind == "property" else "subscribe", thing, kind, name)
        }

    # ------------------------------------------------------------ private

    @property
    def _ledger(self) -> Any:
        return self.runtime.running.stores.twin.ledger

    @asynccontextmanager
    async def _http(self, account: str) -> AsyncIterator[httpx2.AsyncClient]:
        headers = {
            "authorization": f"Bearer {self.accounts[account].token}",
            "content-type": "application/json",
            "accept": "application/json",
        }
        async with httpx2.AsyncClient(
            base_url=self.runtime.http, headers=headers, trust_env=False, timeout=15
        ) as client:
            yield client

    def _mqtt(self, account: str) -> AbstractAsyncContextManager[aiomqtt.Client]:
        return mqtt_client(self.runtime.mqtt_address, self.accounts[account])


async def publish(runtime: Skep, thing: str, kind: str, name: str, value: int) -> None:
    """By the Thing's own agent, past all rules: the handler behind the checks."""
    agent = thing.split(":")[1]
    type_ = AccountType(ROLES[agent][0])
    message = Message(
        operation=Operation.PUBLISH_EVENT if kind == "event" else Operation.PUBLISH_PROPERTY,
        principal=Principal(account=agent, type=type_, role=ROLES[agent][1]),
        thing_id=thing,
        name=name,
        data=value,
        received=runtime.running.runtime.clock(),
    )
    await runtime.running.runtime._telemetry(message)


async def tried(home: Path, seeds: range) -> str:
    cases = permitted = 0
    paths: Counter[str] = Counter()
    async with skep(home) as runtime:
        accounts = {name: await runtime.add(name, type_, role) for name, (type_, role) in ROLES.items()}
        for thing in THINGS:
            td = ThingDescription.of(TD, agent=True)
            await runtime.running.stores.twin.directory.put(thing, td, agent=thing.split(":")[1])
            for kind, name in SERIES:
                await publish(runtime, thing, kind, name, 0)
        rights = runtime.running.stores.authorizer
        for seed in seeds:
            rng = random.Random(seed)
            rules = [random_rule(rng, number) for number in range((0, 4, 12, 30)[seed % 4])]
            trial = Round(runtime, accounts, rules, seed, with_policies=seed % 3 == 1)
            # A request of root's that others may pry into; accepted before any rule says otherwise.
            root = Principal(account="root", type=AccountType.CONSUMER, role=Role.ADMIN)
            await runtime.running.runtime.handle(
                Message(
                    operation=Operation.INVOKE_ACTION,
                    principal=root,
                    thing_id="dtw:lamp:1",
                    name="setSpeed",
                    data=1,
                    received=runtime.running.runtime.clock(),
                    correlation=f"known-{seed}",
                )
            )
            for rule in rules:
                setter = (
                    root if rule["by"] == "root" else Principal(account="pump", type=AccountType.AGENT, role="agent")
                )
                await rights.put_rule(parsed(RuleDocument, {k: v for k, v in rule.items() if k != "by"}), setter)
            if trial.with_policies:
                await rights.put_policy_set(set_document(SECRETS))

            for account in ROLES:
                await trial.over_http(account)
                await trial.over_mqtt(account)
            await trial.deliveries()

            assert trial.differences == [], "\n".join(trial.differences)
            assert 0 < trial.permitted < trial.cases
            cases, permitted, paths = cases + trial.cases, permitted + trial.permitted, paths + trial.paths
            for rule in rules:
                await rights.remove_rule(rule["id"], root)
            if trial.with_policies:
                await rights.remove_policy_set("secrets")
    spread = ", ".join(f"{path} {count}" for path, count in sorted(paths.items()))
    return f"0 differences in {cases} cases over the wire ({permitted} permitted): {spread}"


@pytest.mark.timeout(300)
async def test_rights_over_the_wire_are_those_of_the_model(tmp_path: Path) -> None:
    said = await tried(tmp_path, range(8))
    print(said)
    assert int(said.split()[3]) >= 5_000


@pytest.mark.trial
async def test_rights_over_the_wire_are_those_of_the_model_under_many_rules(tmp_path: Path) -> None:
    print(await tried(tmp_path, range(2, 2 + LONG)))
