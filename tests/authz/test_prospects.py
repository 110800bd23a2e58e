"""What wildcard subscriptions are admitted by: whoever may see anything is let in, who may see nothing is not."""

import random
from pathlib import Path
from typing import Any

import pytest

from authz.authorizer import LocalAuthorizer
from authz.documents import RoleDocument, RuleDocument
from authz.policy.sets import set_document
from tests.authz.rights import LAMP, PUMP, ROOT, TYPES, VERA, authorizer, who
from tests.authz.test_model import NIGHT, SECRETS, random_rule
from tests.bindings.mqtt.support import Client, Refused
from tests.support import PUMP as PUMP_TD
from tests.support import skep
from things.addresses import Address, Kind
from things.identity import AccountType, Principal
from things.messages import Operation
from things.parsing import parsed

pytestmark = pytest.mark.anyio

NOBODY = who("vera", "none")
ANY: dict[str, Any] = {"agent": None, "thing": None, "kind": Kind.PROPERTY, "name": None}
WATCHED = {
    Kind.EVENT: Operation.SUBSCRIBE,
    Kind.PROPERTY: Operation.OBSERVE,
    Kind.TD: Operation.READ,
    Kind.ACTION: Operation.INVOKE_ACTION,
}


@pytest.fixture
def rights(tmp_path: Path) -> LocalAuthorizer:
    return authorizer(tmp_path)


async def put(rights: LocalAuthorizer, **document: Any) -> None:
    await rights.put_rule(parsed(RuleDocument, {"id": "r1", "effect": "allow", "thing": "dtw:pump:*"} | document), ROOT)


def could(rights: LocalAuthorizer, principal: Principal = NOBODY, **levels: Any) -> bool:
    return rights.could_allow(principal, Operation.OBSERVE, **ANY | levels)


def test_roles_alone(rights: LocalAuthorizer) -> None:
    assert not could(rights)
    assert could(rights, VERA)
    assert could(rights, PUMP)
    assert could(rights, PUMP, agent="pump")
    assert not could(rights, PUMP, agent="lamp")
    assert could(rights, PUMP, agent="rollup")
    assert not could(rights, who("vera", "no-such-role"))


ADMITTED: list[dict[str, Any]] = [
    {},
    {"agent": "pump"},
    {"thing": "1"},
    {"agent": "pump", "thing": "1"},
    {"name": "flow"},
]
REFUSED: list[dict[str, Any]] = [
    {"agent": "lamp"},
    {"agent": "pu"},
    {"agent": "pump", "thing": "2"},
    {"name": "target"},
]


async def test_a_rule_about_one_name_admits_what_may_match_it_and_nothing_else(rights: LocalAuthorizer) -> None:
    await put(rights, thing="dtw:pump:1", name="flow", operations=["observe"], accounts=["vera"])

    assert all(could(rights, **levels) for levels in ADMITTED)
    assert not any(could(rights, **levels) for levels in REFUSED)
    assert not could(rights, LAMP, agent="pump")
    assert not rights.could_allow(NOBODY, Operation.SUBSCRIBE, **ANY | {"kind": Kind.EVENT})


async def test_a_deny_that_holds_for_all_closes_but_for_what_is_more_specific(rights: LocalAuthorizer) -> None:
    await put(rights, id="no", effect="deny", thing="*")
    assert not could(rights, VERA)
    await put(rights, id="but", thing="dtw:pump:1")
    assert could(rights, VERA)
    assert not could(rights, VERA, agent="lamp")
    await put(rights, id="never", effect="deny", thing="*", name="*")
    assert not could(rights, VERA)


async def test_a_custom_role_for_single_names_is_admitted(rights: LocalAuthorizer) -> None:
    grant = {"operations": ["observe"], "things": ["dtw:pump:*"], "names": ["flow"]}
    await rights.put_role(parsed(RoleDocument, {"name": "gauge", "grants": [grant]}))

    gauge = who("vera", "gauge")
    assert could(rights, gauge)
    assert could(rights, gauge, name="flow")
    assert not could(rights, gauge, name="target")
    assert not could(rights, gauge, agent="lamp", thing="1")


async def test_policies_are_asked_for_the_best_that_may_come(rights: LocalAuthorizer) -> None:
    def one(effect: str, target: dict[str, Any], **more: Any) -> Any:
        rule = {"id": "r", "effect": effect, "target": target, **more}
        return set_document({"id": effect, "policies": [{"id": "p", "rules": [rule]}]})

    await rights.put_policy_set(
        one("allow", {"name": "flow", "sender": "vera", "time": {"between": ["22:00", "06:00"]}})
    )
    assert could(rights)
    assert not could(rights, name="target")
    await rights.put_policy_set(one("block", {"thing": "dtw:pump:1"}))
    assert could(rights, agent="pump")
    assert not could(rights, agent="pump", thing="1")
    await rights.put_policy_set(one("block", {"sender": "vera"}))
    assert not could(rights)
    assert not could(rights, VERA)
    await rights.remove_policy_set("block")
    await rights.put_policy_set(one("allow", {"name": "flow"}, obligations=["confirm"]))
    assert not could(rights)
    assert could(rights, VERA)


@pytest.mark.parametrize("seed", range(12))
async def test_nothing_that_may_be_seen_is_ever_refused(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rights = authorizer(tmp_path)
    for number in range((2, 8, 25)[seed % 3]):
        rule = random_rule(rng, number)
        by = rule.pop("by")
        setter = Principal(account=by, type=TYPES[by], role="admin" if by == "root" else "agent")
        await rights.put_rule(parsed(RuleDocument, rule), setter)
    if seed % 2:
        await rights.put_policy_set(set_document(NIGHT))
        await rights.put_policy_set(set_document(SECRETS))

    allowed = refused = 0
    for _ in range(1_500):
        account = rng.choice(sorted(TYPES))
        principal = Principal(account=account, type=TYPES[account], role=rng.choice(["none", "viewer", "operator"]))
        if principal.type is not AccountType.CONSUMER:
            principal = Principal(account=account, type=principal.type, role=str(principal.type))
        agent, thing = rng.choice(["pump", "lamp", "rollup"]), rng.choice(["1", "2", "a:b", "table"])
        kind = rng.choice(list(Kind))
        name = "" if kind is Kind.TD else rng.choice(["speed", "secret", "temperature"])
        decision = rights.decide(principal, WATCHED[kind], Address(f"dtw:{agent}:{thing}", kind, name))
        could = rights.could_allow(
            principal,
            WATCHED[kind],
            agent=rng.choice([None, agent]),
            thing=rng.choice([None, thing]),
            kind=kind,
            name=rng.choice([None, name]),
        )
        assert could or not decision.allowed
        allowed += decision.allowed
        refused += not could
    assert allowed
    assert refused


async def test_a_wildcard_shows_the_one_name_that_may_be_seen(tmp_path: Path) -> None:
    async with skep(tmp_path / "home") as runtime:
        works, ann = await runtime.add("works", "agent"), await runtime.add("ann", role="none")
        async with (
            Client(runtime.mqtt_address, works.name, works.token) as agent,
            Client(runtime.mqtt_address, ann.name, ann.token) as client,
        ):
            with pytest.raises(Refused):
                await client.subscribe("things/#")
            document: dict[str, Any] = {"id": "flow", "effect": "allow", "thing": "dtw:works:pump-1", "name": "flow"}
            document |= {"operations": ["observe"], "accounts": ["ann"]}
            await runtime.running.stores.authorizer.put_rule(parsed(RuleDocument, document), ROOT)

            for topic_filter in ("things/#", "things/works/+/property/+", "things/works/pump-1/#"):
                assert await client.subscribe(topic_filter) == 1
            with pytest.raises(Refused):
                await client.subscribe("things/works/pump-1/event/+")
            await agent.publish("agents/works/td/pump-1", PUMP_TD)
            await agent.publish("agents/works/property/pump-1/target", 5)
            await agent.publish("agents/works/event/pump-1/alarm", "hot")
            await agent.publish("agents/works/property/pump-1/flow", 7)
            found = await client.receive()
            assert (found.topic, found.value) == ("things/works/pump-1/property/flow", 7)
            assert await client.settle() == []
