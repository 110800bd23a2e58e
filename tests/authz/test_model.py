"""Random decisions against an independent model: no difference, with and without rules and policies."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from authz.documents import RuleDocument
from authz.policy.sets import set_document
from tests.authz.model import Case, allowed
from tests.authz.rights import HOUR, NOON, TYPES, authorizer
from things.addresses import Address, Kind
from things.decisions import Context
from things.identity import AccountType, Principal, Role
from things.messages import Operation
from things.parsing import parsed

pytestmark = pytest.mark.anyio

ROUNDS = 16
CASES = 1_500

NIGHT = {
    "id": "night",
    "priority": 5,
    "policies": [
        {
            "id": "invoking",
            "combining": "firstApplicable",
            "target": {"operation": "invoke_action", "time": {"between": ["22:00", "06:00"]}},
            "rules": [
                {"id": "rest", "effect": "block"},
                {"id": "otto", "effect": "allow", "priority": 1, "target": {"sender": "otto"}},
            ],
        }
    ],
}
SECRETS = {
    "id": "secrets",
    "policies": [
        {
            "id": "operators",
            "rules": [
                {"id": "no", "effect": "block", "target": {"role": "operator", "operation": "read", "name": "secret*"}}
            ],
        }
    ],
}

THINGS = [
    "dtw:pump:1",
    "dtw:pump:2",
    "dtw:pump:a:b",
    "dtw:lamp:1",
    "dtw:rollup:table",
    "dtw:weather:now",
    "dtw:authn:admin",
    "dtw:authn:user",
    "dtw:authz:admin",
    "dtw:skep:requests",
    "dtw:skep:admin",
    "dtw:vera:1",
    "urn:dev:7",
    "$SYS/broker",
    "",
]
NAMES = ["speed", "temperature", "secret", "secret-key", "setSpeed", None]
ROLES = [str(role) for role in Role]


def random_rule(rng: random.Random, number: int) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "id": f"r{number}",
        "effect": rng.choice(["allow", "deny"]),
        "thing": rng.choice(["*", "dtw:*", "dtw:pump:*", "dtw:*:1", "dtw:pump:1", "dtw:rollup:table", "urn:*"]),
        "by": rng.choice(["root", "pump"]),
    }
    if rule["by"] == "pump":
        rule["thing"] = rng.choice(["dtw:pump:*", "dtw:pump:1", "dtw:pump:*:b"])
    if rng.random() < 0.3:
        rule["kind"] = rng.choice(["property", "event", "action"])
    if rng.random() < 0.4:
        rule["name"] = rng.choice(["speed", "s*", "secret*", "*"])
    if rng.random() < 0.5:
        rule["operations"] = rng.sample([str(operation) for operation in Operation], rng.randint(1, 6))
    if rng.random() < 0.4:
        rule["accounts"] = rng.sample(sorted(TYPES), 2)
    if rng.random() < 0.3:
        rule["roles"] = rng.sample(ROLES, 2)
    if rng.random() < 0.1:
        rule["types"] = [rng.choice(["agent", "consumer", "service"])]
    return rule


@dataclass
class Corner:
    """A small part of all there is: so small that equal keys meet, rules tie and remembered answers are asked for."""

    accounts: list[str]
    operations: list[Operation]
    things: list[str]

    @staticmethod
    def of(rng: random.Random) -> "Corner":
        operations = list(Operation)
        return Corner(
            accounts=rng.sample(sorted(TYPES), 4),
            operations=[*rng.sample(operations, 3), Operation.INVOKE_ACTION, Operation.CALL_RPC, Operation.READ],
            things=[*rng.sample(THINGS, 4), "dtw:pump:1", "dtw:pump:a:b", "dtw:rollup:table"],
        )


def random_case(rng: random.Random, corner: Corner) -> Case:
    account = rng.choice(corner.accounts)
    type_ = TYPES[account]
    roles = {
        AccountType.AGENT: ["agent", "agent", "none", "viewer"],
        AccountType.SERVICE: ["service", "service", "viewer", "manager"],
        AccountType.CONSUMER: ["none", "viewer", "operator", "manager", "admin"],
    }[type_]
    return Case(
        account=account,
        type=str(type_),
        role=rng.choice(roles),
        operation=str(rng.choice(corner.operations)),
        thing=rng.choice(corner.things),
        kind=rng.choice(["property", "action", None]),
        name=rng.choice(NAMES),
        hour=rng.randint(0, 23),
    )


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_random_decisions_agree_with_the_model(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    real = authorizer(tmp_path)
    rules = [random_rule(rng, number) for number in range((0, 4, 12, 30)[seed % 4])]
    corner = Corner.of(rng)
    for rule in rules:
        setter = Principal(
            account=rule["by"], type=TYPES[rule["by"]], role="admin" if rule["by"] == "root" else "agent"
        )
        await real.put_rule(parsed(RuleDocument, {k: v for k, v in rule.items() if k != "by"}), setter)
    with_policies = seed // 4 % 2 == 1
    if with_policies:
        await real.put_policy_set(set_document(NIGHT))
        await real.put_policy_set(set_document(SECRETS))

    differences, permitted = [], 0
    for _ in range(CASES):
        case = random_case(rng, corner)
        principal = Principal(account=case.account, type=AccountType(case.type), role=case.role)
        address = Address(case.thing, None if case.kind is None else Kind(case.kind), case.name)
        context = Context(now=NOON + (case.hour - 12) * HOUR)
        for _ in range(2):  # the second answer comes from memory
            decision = real.decide(principal, Operation(case.operation), address, context)
            if decision.allowed is not allowed(rules, case, with_policies=with_policies):
                differences.append((case, decision))
        permitted += decision.allowed

    assert differences == []
    assert 0 < permitted < CASES
