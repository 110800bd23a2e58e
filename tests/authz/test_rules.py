"""Rules about single callers, Things and names: who may set them, which decides, and that they last."""

from pathlib import Path
from typing import Any

import pytest

from authz.authorizer import LocalAuthorizer
from authz.documents import RuleDocument
from authz.patterns import RulePattern
from tests.authz.rights import LAMP, OTTO, PUMP, ROLLUP, ROOT, VERA, authorizer, who
from things.addresses import Address, Kind
from things.errors import Conflict, Forbidden, Invalid, NotFound
from things.identity import Principal
from things.messages import Operation
from things.parsing import parsed

pytestmark = pytest.mark.anyio

START = Address("dtw:pump:1", Kind.ACTION, "start")


@pytest.fixture
def rights(tmp_path: Path) -> LocalAuthorizer:
    return authorizer(tmp_path)


async def put(rights: LocalAuthorizer, principal: Principal = ROOT, **document: Any) -> None:
    await rights.put_rule(
        parsed(RuleDocument, {"id": "r1", "effect": "deny", "thing": "dtw:pump:*"} | document), principal
    )


async def test_a_rule_widens_and_narrows_what_it_names_and_survives_a_restart(
    rights: LocalAuthorizer, tmp_path: Path
) -> None:
    assert not rights.decide(VERA, Operation.INVOKE_ACTION, START).allowed
    assert rights.decide(OTTO, Operation.INVOKE_ACTION, START).allowed

    await put(rights, id="vera", effect="allow", accounts=["vera"], operations=["invoke_action"], name="start")
    await put(rights, id="otto", effect="deny", accounts=["otto"], operations=["invoke_action"])

    for opened in (rights, authorizer(tmp_path)):
        assert opened.decide(VERA, Operation.INVOKE_ACTION, START).rule == "rule vera"
        assert opened.decide(VERA, Operation.INVOKE_ACTION, START).allowed
        assert not opened.decide(VERA, Operation.INVOKE_ACTION, START._replace(name="stop")).allowed
        assert not opened.decide(OTTO, Operation.INVOKE_ACTION, START).allowed
        assert not opened.decide(OTTO, Operation.CALL_RPC, START).allowed
        assert opened.decide(OTTO, Operation.READ, START).allowed


async def test_a_removed_rule_no_longer_decides(rights: LocalAuthorizer) -> None:
    await put(rights, accounts=["otto"])
    assert not rights.decide(OTTO, Operation.READ, START).allowed

    await rights.remove_rule("r1", ROOT)

    assert rights.decide(OTTO, Operation.READ, START).allowed
    with pytest.raises(NotFound):
        await rights.remove_rule("r1", ROOT)


async def test_the_more_specific_rule_decides_and_deny_wins_a_tie(rights: LocalAuthorizer) -> None:
    await put(rights, id="all", effect="deny")
    await put(rights, id="operators", effect="allow", roles=["operator"])
    assert rights.decide(OTTO, Operation.INVOKE_ACTION, START).rule == "rule operators"
    assert not rights.decide(VERA, Operation.READ, START).allowed

    await put(rights, id="otto", effect="deny", accounts=["otto"])
    assert rights.decide(OTTO, Operation.INVOKE_ACTION, START).rule == "rule otto"

    await put(rights, id="start", effect="allow", name="start")
    assert rights.decide(OTTO, Operation.INVOKE_ACTION, START).rule == "rule start"

    await put(rights, id="stop", effect="deny", name="start")
    assert rights.decide(OTTO, Operation.INVOKE_ACTION, START).rule == "rule stop"


async def test_agents_and_services_rule_over_their_own_things_only(rights: LocalAuthorizer) -> None:
    await put(rights, PUMP, id="own", effect="deny", thing="dtw:pump:1")
    await put(rights, ROLLUP, id="service", effect="allow", thing="dtw:rollup:*", roles=["viewer"])
    assert not rights.decide(VERA, Operation.READ, Address("dtw:pump:1")).allowed

    for principal, thing in [
        (PUMP, "dtw:lamp:1"),
        (PUMP, "*"),
        (PUMP, "dtw:*"),
        (PUMP, "dtw:pump*"),
        (VERA, "dtw:vera:*"),
        (VERA, "dtw:pump:1"),
    ]:
        with pytest.raises(Forbidden):
            await put(rights, principal, id="other", thing=thing)
    with pytest.raises(Conflict):
        await put(rights, LAMP, id="own", thing="dtw:lamp:1")
    with pytest.raises(NotFound):
        await rights.remove_rule("own", LAMP)


async def test_an_agent_cannot_hide_from_admins_but_an_admin_can_be_bound_by_admins(rights: LocalAuthorizer) -> None:
    await put(rights, PUMP, id="hide", effect="deny")
    assert not rights.decide(OTTO, Operation.READ, Address("dtw:pump:1")).allowed
    assert rights.decide(ROOT, Operation.READ, Address("dtw:pump:1")).allowed

    await put(rights, ROOT, id="bind", effect="deny", accounts=["root"])
    assert not rights.decide(ROOT, Operation.READ, Address("dtw:pump:1")).allowed


async def test_no_rule_lifts_a_limit(rights: LocalAuthorizer) -> None:
    await put(rights, id="wide", effect="allow", thing="*")
    for principal, operation, thing in [
        (LAMP, Operation.PUBLISH_EVENT, "dtw:pump:1"),
        (LAMP, Operation.PUBLISH_TD, "dtw:pump:1"),
        (VERA, Operation.PUBLISH_EVENT, "dtw:vera:1"),
        (VERA, Operation.MANAGE, "dtw:authn:admin"),
        (OTTO, Operation.INVOKE_ACTION, "dtw:authz:admin"),
        (OTTO, Operation.SUBSCRIBE, "$SYS/broker"),
        (who("vera", "none"), Operation.READ, "dtw:pump:1"),
    ]:
        assert not rights.decide(principal, operation, Address(thing)).allowed
    for guarded in ("dtw:authn:admin", "dtw:authz:admin"):
        with pytest.raises(Invalid):
            await put(rights, thing=guarded)


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""},
        {"id": "a/b"},
        {"id": "x" * 65},
        {"effect": "maybe"},
        {"thing": ""},
        {"thing": "dtw:pump:\n"},
        {"thing": "x" * 257},
        {"operations": ["fly"]},
        {"accounts": ["Vera"]},
        {"accounts": ["+"]},
        {"types": ["user"]},
        {"kind": "channel"},
        {"setBy": "root"},
        {"byAdmin": True},
    ],
)
def test_a_rule_that_means_nothing_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        parsed(RuleDocument, {"id": "r1", "effect": "deny", "thing": "dtw:pump:*"} | change)


async def test_a_rule_for_an_unknown_role_is_refused(rights: LocalAuthorizer) -> None:
    with pytest.raises(Invalid):
        await put(rights, roles=["gardener"])


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("*", "", True),
        ("*", "anything", True),
        ("a*", "a", True),
        ("a*", "b", False),
        ("*a", "ba", True),
        ("a*b", "ab", True),
        ("a*a", "a", False),
        ("a*b*c", "aXbYc", True),
        ("a*b*c", "acb", False),
        ("ab*ba", "aba", False),
        ("*.*", "a.b", True),
        ("[ab]", "a", False),
        ("a.c", "abc", False),
        ("a?c", "abc", False),
    ],
)
def test_patterns(pattern: str, text: str, expected: bool) -> None:
    assert RulePattern.parse(pattern).matches(text) is expected


async def test_rights_are_uniform_unless_something_looks_at_names(rights: LocalAuthorizer) -> None:
    assert rights.is_uniform(OTTO, "dtw:pump:1")

    await put(rights, id="whole", accounts=["otto"], operations=["invoke_action"])
    assert rights.is_uniform(OTTO, "dtw:pump:1")
    assert rights.decide(OTTO, Operation.INVOKE_ACTION, Address("dtw:pump:1")) == rights.decide(
        OTTO, Operation.INVOKE_ACTION, START
    )

    await put(rights, id="one", effect="allow", accounts=["otto"], operations=["invoke_action"], name="start")
    assert not rights.is_uniform(OTTO, "dtw:pump:1")
    assert rights.is_uniform(OTTO, "dtw:lamp:1")
