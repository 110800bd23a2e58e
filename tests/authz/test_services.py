"""Rights as Things: methods for admins, rules of agents about their own Things, explanations, trials."""

from pathlib import Path
from typing import Any

import pytest

from authz.authorizer import LocalAuthorizer
from authz.explain import explain
from authz.service import AuthzAdmin, AuthzUser
from tests.authz.rights import NOON, OTTO, PUMP, ROOT, TYPES, VERA, authorizer
from things.addresses import Address, Kind
from things.errors import Forbidden, Invalid, NotFound, UnknownAccount, UnknownName
from things.identity import AccountType, Principal
from things.messages import JSONValue, Operation
from things.td import ThingDescription

pytestmark = pytest.mark.anyio

ROLES = {"vera": "viewer", "otto": "operator", "root": "admin", "pump": "agent"}


@pytest.fixture
def rights(tmp_path: Path) -> LocalAuthorizer:
    return authorizer(tmp_path)


@pytest.fixture
def acts() -> list[tuple[str, str, str]]:
    return []


def account(name: str) -> tuple[AccountType, str] | None:
    return (TYPES[name], ROLES[name]) if name in ROLES else None


@pytest.fixture
def admin(rights: LocalAuthorizer, acts: list[tuple[str, str, str]]) -> AuthzAdmin:
    return AuthzAdmin(
        rights, accounts=account, clock=lambda: NOON, record=lambda act, by, target: acts.append((act, by, target))
    )


@pytest.fixture
def user(rights: LocalAuthorizer) -> AuthzUser:
    return AuthzUser(rights, clock=lambda: NOON)


async def call(service: AuthzAdmin | AuthzUser, name: str, principal: Principal = ROOT, /, **given: Any) -> Any:
    return await service.call(name, given or None, principal)


def test_the_services_are_things_whose_methods_all_have_a_requirement(admin: AuthzAdmin, user: AuthzUser) -> None:
    for service, operation in ((admin, Operation.MANAGE), (user, Operation.READ)):
        td = ThingDescription.of(service.td, agent=True)
        for name in service.td["actions"]:
            asked, address = service.requirement(name, None)
            assert (asked, address) == (operation, Address(service.thing_id, Kind.ACTION, name))
            assert td.actions[name]
        with pytest.raises(UnknownName):
            service.requirement("putrole", None)


async def test_roles_and_rules_by_rpc_are_audited(
    admin: AuthzAdmin, rights: LocalAuthorizer, acts: list[tuple[str, str, str]]
) -> None:
    await call(admin, "putRole", role={"name": "gardener", "base": "viewer"})
    await call(admin, "putRule", rule={"id": "r1", "effect": "deny", "thing": "dtw:lamp:*", "roles": ["gardener"]})

    names = [role["name"] for role in (await call(admin, "listRoles"))["items"]]
    assert names == ["none", "guest", "viewer", "operator", "manager", "admin", "agent", "service", "gardener"]
    assert [rule["setBy"] for rule in (await call(admin, "listRules"))["items"]] == ["root"]
    await call(admin, "removeRule", id="r1")
    await call(admin, "removeRole", name="gardener")
    assert (rights.rules, rights.has_role("gardener")) == ([], False)
    assert [act for act, _, _ in acts] == ["role-defined", "rule-set", "rule-removed", "role-removed"]


async def test_an_agent_rules_over_its_own_things_by_rpc(user: AuthzUser, rights: LocalAuthorizer) -> None:
    await call(user, "putRule", PUMP, rule={"id": "own", "effect": "deny", "thing": "dtw:pump:1", "name": "secret"})
    assert not rights.decide(VERA, Operation.READ, Address("dtw:pump:1", Kind.PROPERTY, "secret")).allowed

    assert (await call(user, "listRules", VERA))["items"] == []
    with pytest.raises(Forbidden):
        await call(user, "putRule", VERA, rule={"id": "x", "effect": "allow", "thing": "dtw:pump:1"})
    with pytest.raises(NotFound):
        await call(user, "removeRule", VERA, id="own")
    await call(user, "removeRule", PUMP, id="own")
    assert rights.rules == []


BLOCK_READS: dict[str, JSONValue] = {
    "id": "one",
    "policies": [
        {"id": "p", "rules": [{"id": "r", "effect": "block", "target": {"operation": "read", "role": "viewer"}}]}
    ],
}


async def test_policies_are_tried_on_messages_before_they_count(admin: AuthzAdmin, rights: LocalAuthorizer) -> None:
    messages = [
        {"sender": "vera", "operation": "read", "thing": "dtw:pump:1"},
        {"sender": "otto", "operation": "read", "thing": "dtw:pump:1"},
    ]

    tried = await call(admin, "tryPolicies", policySets=[BLOCK_READS], messages=messages)

    assert [(item["allowed"], item["changed"]) for item in tried["items"]] == [(False, True), (True, False)]
    assert tried["items"][0]["rule"] == "policy one/p/r"
    assert rights.decide(VERA, Operation.READ, Address("dtw:pump:1")).allowed
    assert (await call(admin, "listPolicySets"))["items"] == []

    assert await call(admin, "putPolicySet", policySet=BLOCK_READS) == {"id": "one", "version": 1}
    without = await call(admin, "tryPolicies", without=["one"], messages=messages[:1])
    assert [(item["allowed"], item["changed"]) for item in without["items"]] == [(True, True)]


async def test_policy_sets_by_rpc_have_versions(admin: AuthzAdmin, rights: LocalAuthorizer) -> None:
    await call(admin, "putPolicySet", policySet=BLOCK_READS)
    await call(admin, "putPolicySet", policySet={**BLOCK_READS, "description": "again"})

    (listed,) = (await call(admin, "listPolicySets"))["items"]
    assert (listed["version"], listed["earlier"], listed["description"]) == (2, [1], "again")
    assert (await call(admin, "getPolicySet", id="one", version=1))["description"] == ""
    assert (await call(admin, "getPolicySet", id="one"))["description"] == "again"
    for name in ("two", "../one", "one/../one", ""):
        with pytest.raises((NotFound, Invalid)):
            await call(admin, "getPolicySet", id=name, version=1)
    await call(admin, "removePolicySet", id="one")
    assert rights.policy_sets.documents == {}
    assert (await call(admin, "reload")) == {"problem": None}


async def test_explain_prints_the_rule_that_decides_and_what_each_stage_says(
    admin: AuthzAdmin, rights: LocalAuthorizer
) -> None:
    start = Address("dtw:pump:1", Kind.ACTION, "start")
    text = str(explain(rights, VERA, Operation.INVOKE_ACTION, start))
    assert text.splitlines() == [
        "denied: role viewer does not allow invoke_action",
        "  limit: nothing",
        "  policy: nothing",
        "  rule: nothing",
        "  role: deny (role viewer does not allow invoke_action)",
    ]

    await call(admin, "putRule", rule={"id": "r1", "effect": "allow", "thing": "dtw:pump:*", "accounts": ["vera"]})
    told = await call(admin, "explain", sender="vera", operation="invoke", thing="dtw:pump:1", name="start")
    assert (told["allowed"], told["rule"]) == (True, "rule r1")
    assert [stage["stage"] for stage in told["stages"]] == ["limit", "policy", "rule", "role"]


async def test_an_explanation_is_always_what_is_decided(admin: AuthzAdmin, rights: LocalAuthorizer) -> None:
    await call(admin, "putPolicySet", policySet=BLOCK_READS)
    for principal in (VERA, OTTO, ROOT, PUMP):
        for operation in Operation:
            for thing in ("dtw:pump:1", "dtw:authz:admin", "$SYS/x", "urn:x", ""):
                address = Address(thing)
                explained = explain(rights, principal, operation, address).decision
                decided = rights.decide(principal, operation, address)
                assert (explained.allowed, explained.rule) == (decided.allowed, decided.rule)


async def test_a_question_that_means_nothing_is_refused(admin: AuthzAdmin) -> None:
    with pytest.raises(Invalid):
        await call(admin, "explain", sender="vera", operation="fly", thing="dtw:pump:1")
    with pytest.raises(UnknownAccount):
        await call(admin, "explain", sender="nobody", operation="read", thing="dtw:pump:1")
    with pytest.raises(Invalid):
        await call(admin, "explain", sender="vera")
    with pytest.raises(Invalid):
        await call(admin, "tryPolicies", messages=[])
    with pytest.raises(Invalid):
        await call(admin, "putRole", role={"name": "x", "grants": "all"})


async def test_everybody_may_have_their_own_rights_explained_and_nobody_elses(user: AuthzUser) -> None:
    told = await call(user, "explain", VERA, sender="root", operation="write", thing="dtw:pump:1", name="speed")

    assert told["allowed"] is False
    assert "viewer" in told["rule"]
