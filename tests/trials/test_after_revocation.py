"""After a revocation nothing happens in an account's name: random credentials, random acts that were put off over
random doors, and random revocations. Then an agent comes back to which each act would have said something.

`SKEP_TRIAL_DEFERRED` says how many cases the long form tries.
"""

import asyncio
import json
import os
import random
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from authz.documents import RuleDocument
from authz.policy.sets import set_document
from tests.bindings.mqtt.support import Client, Refused
from tests.support import PUMP, Skep, skep
from things.delivery import State
from things.identity import AccountType, Principal, Role
from things.parsing import parsed

pytestmark = pytest.mark.anyio

CASES = int(os.environ.get("SKEP_TRIAL_DEFERRED", "500"))
PASSWORD, OTHER = "correct horse battery", "another long password"
ROOT = Principal(account="root", type=AccountType.CONSUMER, role=Role.ADMIN)
KEPT = {"v5": True, "clean": False, "connect_properties": {"SessionExpiryInterval": 600}}
DEADLINE_S = 30.0
DELAY_S = 2

CREDENTIALS = ("token", "password", "login", "certificate")
ACTS = ("will", "delayed will", "queued request", "parked queue", "slow body", "open connection")
REVOCATIONS = ("disable", "remove", "remake", "role none", "demote", "credential", "rule", "policy")


@dataclass(slots=True)
class Case:
    """One account, what it left behind, and how its right ended."""

    name: str
    credential: str
    act: str
    revocation: str
    secret: str | None = None
    tls: ssl.SSLContext | None = None
    heard: list[str] = field(default_factory=list)
    finish: Callable[[], Awaitable[None]] | None = None
    """Tries what can be tried only after the revocation."""

    def __str__(self) -> str:
        return f"{self.name}: {self.act} by {self.credential}, then {self.revocation}"


@dataclass(slots=True)
class Trial:
    runtime: Skep
    folder: Path
    stack: AsyncExitStack

    # ------------------------------------------------------------ credentials

    async def given(self, case: Case) -> None:
        """Make the account with the credential of the case."""
        authenticator = self.runtime.running.stores.authenticator
        _, token = await authenticator.administration.add(
            case.name, AccountType.CONSUMER, Role.OPERATOR, password=PASSWORD, by="test"
        )
        match case.credential:
            case "token":
                case.secret = token
            case "password":
                case.secret = PASSWORD
            case "login":
                case.secret = (await authenticator.open_login(case.name, PASSWORD, source=None)).access_token
            case _:
                certificates = self.runtime.running.certificates
                pem, key, _ = await authenticator.certificates.issue(certificates, case.name, None, by="test")
                assert key is not None
                file = self.folder / f"{case.name}.pem"
                file.write_text(pem + key)
                case.tls = certificates.client_context()
                case.tls.load_cert_chain(file)

    def client(self, case: Case, **options: object) -> Client:
        mqtts = urlsplit(self.runtime.running.mqtts or "")
        address = (mqtts.hostname or "", mqtts.port or 0) if case.tls else self.runtime.mqtt_address
        return Client(address, case.name, case.secret, case.name, tls=case.tls, **options)  # type: ignore[arg-type]

    # ------------------------------------------------------------ what is put off

    async def put_off(self, case: Case) -> None:
        topic = f"req/{case.name}/action/works/pump-1/setSpeed/left"
        will = (topic, b"3")
        match case.act:
            case "will":
                open_one = await self.stack.enter_async_context(self.client(case, will=will))
                case.finish = lambda: self._cut(open_one)
            case "delayed will":
                async with self.client(case, will=will, will_delay_s=DELAY_S, **KEPT) as client:
                    await client.break_off()
            case "queued request":
                async with self.client(case) as client:
                    await client.publish(topic, 3)
            case "parked queue":
                async with self.client(case, **KEPT) as client:
                    await client.subscribe("things/works/pump-1/event/#")
                case.finish = lambda: self._back(case)
            case "slow body":
                await self._slowly(case)
            case _:
                client = await self.stack.enter_async_context(self.client(case))
                case.finish = lambda: self._published(client, topic)

    async def _cut(self, client: Client) -> None:
        if client.paho.socket() is not None:
            await client.break_off()

    async def _published(self, client: Client, topic: str) -> None:
        client.send(topic, 3)

    async def _back(self, case: Case) -> None:
        try:
            async with self.client(case, **KEPT) as client:
                case.heard += [one.topic for one in await client.settle()]
        except Refused:
            return

    async def _slowly(self, case: Case) -> None:
        """A request whose body comes after the revocation."""
        authorization = f"Bearer {case.secret}"
        where = urlsplit(self.runtime.http)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        self.stack.callback(writer.close)
        head = (
            f"POST /things/dtw:works:pump-1/actions/setSpeed HTTP/1.1\r\nHost: {where.netloc}\r\n"
            f"Authorization: {authorization}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n "
        )
        writer.write(head.encode())
        await writer.drain()

        async def rest() -> None:
            writer.write(b"3")
            await writer.drain()
            status = (await reader.readline()).split()[1]
            if status.startswith(b"2"):
                case.heard.append(f"HTTP {status.decode()}")

        case.finish = rest

    # ------------------------------------------------------------ revocations

    async def revoke(self, case: Case) -> None:
        stores, name = self.runtime.running.stores, case.name
        authenticator = stores.authenticator
        administration = authenticator.administration
        match case.revocation:
            case "disable":
                await administration.disable(name, by="test")
            case "remove":
                await administration.remove(name, by="test")
            case "remake":
                await administration.remove(name, by="test")
                await administration.add(name, AccountType.CONSUMER, Role.OPERATOR, password=OTHER, by="test")
            case "role none":
                await administration.set_role(name, Role.NONE, by="test")
            case "demote":
                # A viewer still sees what waits in a parked queue, if not after a change of role.
                await administration.set_role(name, Role.VIEWER, by="test")
            case "credential" if case.credential == "token":
                for token in authenticator.register.tokens_of(name):
                    await administration.revoke_token(token.credential_id, by="test")
            case "credential" if case.credential == "certificate":
                for one in authenticator.certificates.of(name):
                    await authenticator.certificates.revoke(one.credential_id, by="test")
            case "credential":
                await administration.set_password(name, OTHER, by="test")
            case "rule":
                document = {"id": f"no-{name}", "effect": "deny", "thing": "dtw:works:*", "accounts": [name]}
                await stores.authorizer.put_rule(parsed(RuleDocument, document), ROOT)
            case _:
                rule = {"id": "no", "effect": "block", "target": {"sender": name, "agent": "works"}}
                policies = [{"id": "all", "rules": [rule]}]
                await stores.authorizer.put_policy_set(set_document({"v": 1, "id": f"no-{name}", "policies": policies}))


def drawn(rng: random.Random, count: int) -> list[Case]:
    """Every act and revocation first, then at random."""
    pairs = [(act, revocation) for act in ACTS for revocation in REVOCATIONS]
    rng.shuffle(pairs)
    cases = []
    for number in range(count):
        act, revocation = pairs[number] if number < len(pairs) else (rng.choice(ACTS), rng.choice(REVOCATIONS))
        credentials = [one for one in CREDENTIALS if act != "slow body" or one in ("token", "login")]
        cases.append(Case(f"eve-{number}", rng.choice(credentials), act, revocation))
    return cases


async def tried(home: Path, seed: int, count: int) -> str:
    rng = random.Random(seed)
    cases = drawn(rng, count)
    async with skep(home, tls=True) as runtime, AsyncExitStack() as stack:
        trial = Trial(runtime, home, stack)
        works = await runtime.add("works", "agent")
        async with Client(runtime.mqtt_address, works.name, works.token, "first") as agent:
            await agent.publish("agents/works/td/pump-1", PUMP)
        for case in cases:
            await trial.given(case)
            await trial.put_off(case)
            async with Client(runtime.mqtt_address, works.name, works.token, "teller") as agent:
                await agent.publish("agents/works/event/pump-1/alarm", "wait")
            await trial.revoke(case)
            if case.finish is not None:
                await case.finish()
        await only_the_good_one_was_heard(trial, works.token)
        ledger = runtime.running.stores.twin.ledger
        for case in cases:
            assert case.heard == [], f"seed {seed}, {case}"
            row = await ledger.by_reference(case.name, "left")
            assert row is None or (row.state, row.reason) == (State.FAILED, "forbidden"), f"seed {seed}, {case}"
    return f"0 of {count} acts had an effect after the revocation (seed {seed})"


async def only_the_good_one_was_heard(trial: Trial, token: str) -> None:
    """An account in good standing leaves a delayed will last: once it came, the time of all others is over."""
    good = Case("good", "token", "delayed will", "")
    await trial.given(good)
    await trial.put_off(good)
    async with Client(trial.runtime.mqtt_address, "works", token, "agent") as agent:
        await agent.subscribe("inbox/works/#")
        with anyio.fail_after(DEADLINE_S):
            request = await agent.receive()
        others = await agent.settle()
    identity = request.topic.rpartition("/")[2]
    row = await trial.runtime.running.stores.twin.ledger.get(identity)
    assert row is not None
    assert [row.caller, *(json.dumps(one.topic) for one in others)] == ["good"]


async def test_nothing_happens_in_the_name_of_somebody_whose_right_has_ended(tmp_path: Path) -> None:
    print(await tried(tmp_path, random.randrange(1 << 32), len(ACTS) * len(REVOCATIONS)))


@pytest.mark.trial
async def test_nothing_happens_after_many_random_revocations(tmp_path: Path) -> None:
    print(await tried(tmp_path, random.randrange(1 << 32), CASES))
