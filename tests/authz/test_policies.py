"""Policies: combining, conditions, versions, and failing closed."""

import json
from pathlib import Path
from typing import Any

import pytest

from authz.authorizer import LocalAuthorizer
from authz.policy.sets import PolicySets, set_document
from tests.authz.rights import HOUR, NOON, OTTO, PUMP, ROOT, VERA, authorizer
from things.addresses import Address, Kind
from things.decisions import Context
from things.errors import Conflict, Invalid, NotFound, StorageDamaged
from things.messages import JSONValue, Operation

pytestmark = pytest.mark.anyio

SPEED = Address("dtw:pump:1", Kind.PROPERTY, "speed")
START = Address("dtw:pump:1", Kind.ACTION, "start")


@pytest.fixture
def rights(tmp_path: Path) -> LocalAuthorizer:
    return authorizer(tmp_path)


def rule(id_: str, effect: str, condition: JSONValue = None, **more: Any) -> dict[str, Any]:
    return {"id": id_, "effect": effect, "condition": condition, **more}


def one_set(*rules: dict[str, Any], id_: str = "one", combining: str = "blockOverrides", **more: Any) -> dict[str, Any]:
    return {"id": id_, "policies": [{"id": "p", "combining": combining, "rules": list(rules)}], **more}


async def activate(rights: LocalAuthorizer, *documents: dict[str, Any]) -> None:
    for document in documents:
        await rights.put_policy_set(set_document(document))


def context(hour: float = 12, **more: Any) -> Context:
    return Context(now=NOON + int((hour - 12) * HOUR), **more)


# ---------------------------------------------------------------- combining


@pytest.mark.parametrize(
    ("combining", "rules", "expected"),
    [
        ("blockOverrides", ["allow", "block"], "block"),
        ("blockOverrides", ["block", "allow"], "block"),
        ("blockOverrides", ["allow", "allow"], "allow"),
        ("allowOverrides", ["block", "allow"], "allow"),
        ("allowOverrides", ["block", "block"], "block"),
        ("firstApplicable", ["allow", "block"], "allow"),
        ("firstApplicable", ["block", "allow"], "block"),
    ],
)
async def test_combining(rights: LocalAuthorizer, combining: str, rules: list[str], expected: str) -> None:
    await activate(rights, one_set(*(rule(f"r{i}", effect) for i, effect in enumerate(rules)), combining=combining))

    assert rights.decide(VERA, Operation.READ, SPEED).allowed is (expected == "allow")
    assert rights.decide(VERA, Operation.WRITE_PROPERTY, SPEED).allowed is (expected == "allow")


async def test_priority_orders_what_applies_first(rights: LocalAuthorizer) -> None:
    await activate(
        rights,
        one_set(rule("later", "allow"), rule("sooner", "block", priority=5), combining="firstApplicable"),
    )

    assert rights.decide(VERA, Operation.READ, SPEED).rule == "policy one/p/sooner"


async def test_the_set_of_higher_priority_decides_and_a_block_among_equals(rights: LocalAuthorizer) -> None:
    await activate(rights, one_set(rule("b", "block"), id_="low"), one_set(rule("a", "allow"), id_="high", priority=1))
    assert rights.decide(VERA, Operation.READ, SPEED).rule == "policy high/p/a"

    await activate(rights, one_set(rule("b", "block"), id_="other", priority=1))
    assert rights.decide(VERA, Operation.READ, SPEED).rule == "policy other/p/b"


async def test_what_no_rule_speaks_of_is_left_to_roles(rights: LocalAuthorizer) -> None:
    await activate(rights, one_set(rule("r", "block", {"sender": "otto"})))

    assert rights.decide(VERA, Operation.READ, SPEED).rule.startswith("role viewer")
    assert rights.decide(OTTO, Operation.READ, SPEED).rule == "policy one/p/r"


async def test_no_policy_lifts_a_limit_or_locks_the_admin_out(rights: LocalAuthorizer) -> None:
    await activate(rights, one_set(rule("all", "allow")))
    assert not rights.decide(PUMP, Operation.PUBLISH_EVENT, Address("dtw:lamp:1")).allowed
    assert not rights.decide(OTTO, Operation.MANAGE, Address("dtw:authn:admin")).allowed

    await activate(rights, one_set(rule("none", "block")))
    assert not rights.decide(ROOT, Operation.READ, SPEED).allowed
    assert rights.decide(ROOT, Operation.MANAGE, Address("dtw:authz:admin")).allowed


async def test_obligations_of_rule_policy_and_set_go_together(rights: LocalAuthorizer) -> None:
    document = one_set(rule("a", "allow", obligations=["confirm"]), obligations=["log"])
    await activate(rights, document)

    decision = rights.decide(VERA, Operation.WRITE_PROPERTY, SPEED)
    assert set(decision.obligations) == {"confirm", "log"}
    assert decision.allowed
    assert not decision.is_free


@pytest.mark.parametrize("operation", ["read", "observe", "subscribe", "history", "send"])
async def test_what_nobody_can_confirm_is_denied(rights: LocalAuthorizer, operation: str) -> None:
    await activate(rights, one_set(rule("a", "allow", obligations=["confirm"])))

    decision = rights.decide(VERA, Operation(operation), SPEED)
    assert (decision.allowed, decision.obligations) == (False, ())
    assert decision.rule == f"policy one/p/a, and {operation} cannot be confirmed"


async def test_a_set_uses_another_that_is_not_active_itself(rights: LocalAuthorizer) -> None:
    shared = one_set(rule("no", "block", {"operation": "read"}), id_="shared", enabled=False)
    await activate(rights, shared)
    assert rights.decide(VERA, Operation.READ, SPEED).allowed

    await activate(rights, {"id": "user", "target": {"role": "viewer"}, "policies": [{"use": "shared"}]})

    assert not rights.decide(VERA, Operation.READ, SPEED).allowed
    assert rights.decide(OTTO, Operation.READ, SPEED).allowed
    with pytest.raises(Invalid):
        await rights.remove_policy_set("shared")


# ---------------------------------------------------------------- conditions

CONDITIONS: list[tuple[JSONValue, dict[str, Any], bool]] = [
    ({"sender": "vera"}, {}, True),
    ({"sender": ["otto", "vera"]}, {}, True),
    ({"sender": "ver*"}, {}, True),
    ({"sender": {"in": ["otto"]}}, {}, False),
    ({"type": "consumer", "role": "viewer"}, {}, True),
    ({"type": "consumer", "role": "operator"}, {}, False),
    ([{"role": "operator"}, {"role": "viewer"}], {}, True),
    ({"thing": "dtw:pump:*", "agent": "pump", "kind": "property", "name": "speed"}, {}, True),
    ({"operation": "write_property"}, {}, False),
    ({"not": {"operation": "write_property"}}, {}, True),
    ({"anyOf": [{"role": "operator"}, {"allOf": [{"role": "viewer"}, {"name": "speed"}]}]}, {}, True),
    ({"time": {"between": ["22:00", "06:00"]}}, {"hour": 23}, True),
    ({"time": {"between": ["22:00", "06:00"]}}, {"hour": 22}, True),
    ({"time": {"between": ["22:00", "06:00"]}}, {"hour": 5.99}, True),
    ({"time": {"between": ["22:00", "06:00"]}}, {"hour": 6}, False),
    ({"time": {"between": ["22:00", "06:00"]}}, {"hour": 12}, False),
    ({"time": {"between": ["08:00", "18:00"]}}, {"hour": 12}, True),
    ({"weekday": ["sat", "sun"]}, {}, True),
    ({"weekday": "mon"}, {}, False),
    ({"date": {"moreThan": "2026-11-20"}}, {}, True),
    ({"date": "2026-11-21"}, {}, True),
    ({"source": {"within": "10.0.0.0/8"}}, {"source": "10.1.2.3"}, True),
    ({"source": {"within": "10.0.0.0/8"}}, {"source": "::ffff:10.1.2.3"}, True),
    ({"source": {"within": "10.0.0.0/8"}}, {"source": "11.1.2.3"}, False),
    ({"source": {"within": ["10.0.0.0/8", "2001:db8::/32"]}}, {"source": "2001:db8::7"}, True),
    ({"source": {"within": "127.0.0.0/8"}}, {"source": None}, True),
    ({"source": {"within": "0.0.0.0/0"}}, {"source": "nonsense"}, False),
    ({"binding": "mqtt"}, {"binding": "mqtt"}, True),
    ({"thingType": "saref:Pump"}, {"thing_types": ("Thing", "saref:Pump")}, True),
    ({"thingType": "saref:Pump"}, {"thing_types": ()}, False),
    ({"rate": {"moreThan": 60}}, {"counters": {"account": 61.0}}, True),
    ({"rate": {"moreThan": 60}}, {}, False),
    ({"thingRate": {"lessThan": 5}}, {"counters": {"thing": 4.0}}, True),
    ({"payload": {"moreThan": 5}}, {"payload": 6}, True),
    ({"payload": {"moreThan": 5}}, {"payload": True}, False),
    ({"payload": {"moreThan": 5}}, {"payload": "6"}, False),
    ({"payload": 1}, {"payload": True}, False),
    ({"payload": 1}, {"payload": 1.0}, True),
    ({"payload": True}, {"payload": True}, True),
    ({"payload": None}, {"payload": None}, True),
    ({"payload/level": {"between": [0, 10]}}, {"payload": {"level": 0}}, True),
    ({"payload/level": {"between": [0, 10]}}, {"payload": {"level": 10}}, False),
    ({"payload/levels/1": 7}, {"payload": {"levels": [5, 7]}}, True),
    ({"payload/levels/9": 7}, {"payload": {"levels": [5, 7]}}, False),
    ({"payload/a~1b": 7}, {"payload": {"a/b": 7}}, True),
    ({"payload/level": {"exists": True}}, {"payload": {"level": None}}, True),
    ({"payload/level": {"exists": False}}, {"payload": {}}, True),
    ({"payload/level": {"lessThan": 5}}, {"payload": {}}, False),
    ({"not": {"payload/level": {"lessThan": 5}}}, {"payload": {}}, True),
    ({"payload": {"contains": "x"}}, {"payload": ["x"]}, True),
    ({"payload": {"contains": "x"}}, {"payload": {"x": 1}}, True),
    ({"payload": {"contains": "x"}}, {"payload": "axb"}, True),
    ({"payload": {"contains": ["x"]}}, {"payload": {"x": 1}}, False),
    ({"payload": {"contains": "x"}}, {"payload": 7}, False),
]


@pytest.mark.parametrize(("condition", "given", "expected"), CONDITIONS)
async def test_conditions(rights: LocalAuthorizer, condition: JSONValue, given: dict[str, Any], expected: bool) -> None:
    await activate(rights, one_set(rule("r", "block", condition)))

    for _ in range(2):
        assert rights.decide(VERA, Operation.READ, SPEED, context(**given)).allowed is not expected


async def test_one_messages_attributes_do_not_leak_into_the_next(rights: LocalAuthorizer) -> None:
    await activate(rights, one_set(rule("r", "allow", {"payload/key": "open"})))
    assert rights.decide(VERA, Operation.INVOKE_ACTION, START, context(payload={"key": "open"})).allowed

    assert not rights.decide(VERA, Operation.INVOKE_ACTION, START, context(payload={})).allowed
    assert not rights.decide(VERA, Operation.INVOKE_ACTION, START, context()).allowed


async def test_without_a_message_what_might_block_does_and_what_might_allow_does_not(rights: LocalAuthorizer) -> None:
    await activate(rights, one_set(rule("r", "block", {"source": {"within": "10.0.0.0/8"}})))
    assert not rights.decide(VERA, Operation.READ, SPEED).allowed
    assert rights.decide(VERA, Operation.READ, SPEED, context(source="192.0.2.7")).allowed

    await activate(rights, one_set(rule("r", "allow", {"source": {"within": "10.0.0.0/8"}})))
    assert not rights.decide(VERA, Operation.WRITE_PROPERTY, SPEED).allowed
    assert rights.decide(VERA, Operation.WRITE_PROPERTY, SPEED, context(source="10.0.0.1")).allowed


async def test_the_time_is_known_without_a_message(rights: LocalAuthorizer) -> None:
    await activate(rights, one_set(rule("r", "block", {"time": {"between": ["22:00", "06:00"]}})))
    assert rights.decide(VERA, Operation.READ, SPEED).allowed

    await activate(rights, one_set(rule("r", "block", {"time": {"between": ["08:00", "18:00"]}})))
    assert not rights.decide(VERA, Operation.READ, SPEED).allowed


BROKEN_SETS: list[object] = [
    None,
    [],
    {},
    {"id": "x"},
    {"id": "x", "policies": []},
    {"id": "x", "policies": [{"id": "p", "rules": []}]},
    {"id": "../x", "policies": [{"id": "p", "rules": [rule("r", "block")]}]},
    one_set(rule("r", "deny")),
    one_set(rule("r", "block"), combining="denyOverrides"),
    one_set(rule("r", "block", {"colour": "red"})),
    one_set(rule("r", "block", {"Sender": "vera"})),
    one_set(rule("r", "block", {"sender": {"like": "v%"}})),
    one_set(rule("r", "block", {"sender": []})),
    one_set(rule("r", "block", {"sender": {}})),
    one_set(rule("r", "block", {})),
    one_set(rule("r", "block", [])),
    one_set(rule("r", "block", "always")),
    one_set(rule("r", "block", {"sender": {"between": ["a"]}})),
    one_set(rule("r", "block", {"rate": {"between": [9, 1]}})),
    one_set(rule("r", "block", {"rate": {"between": [1, "9"]}})),
    one_set(rule("r", "block", {"rate": {"moreThan": True}})),
    one_set(rule("r", "block", {"time": {"between": ["22:00", "25:00"]}})),
    one_set(rule("r", "block", {"date": {"moreThan": "21.11.2026"}})),
    one_set(rule("r", "block", {"source": {"within": "10.0.0.0/99"}})),
    one_set(rule("r", "block", {"source": {"within": "10.0.0.1/8"}})),
    one_set(rule("r", "block", {"payload": {"exists": 1}})),
    one_set(rule("r", "block", {"sender": "*" * 9})),
    one_set(rule("r", "block", obligations=["dance"])),
    one_set(rule("r", "block"), colour="red"),
    one_set(rule("r", "block"), v=2),
    {"id": "x", "policies": [{"use": "nobody"}]},
    {"id": "x", "policies": [{"use": "x"}]},
]


@pytest.mark.parametrize("document", BROKEN_SETS, ids=range(len(BROKEN_SETS)))
async def test_a_broken_set_is_refused_and_changes_nothing(
    rights: LocalAuthorizer, tmp_path: Path, document: object
) -> None:
    with pytest.raises(Invalid) as refusal:
        await rights.put_policy_set(set_document(document))

    assert refusal.value.code == "invalid"
    assert refusal.value.problems
    assert rights.decide(VERA, Operation.READ, SPEED).allowed
    assert not (tmp_path / "policies").exists()


def deep(levels: int) -> JSONValue:
    condition: JSONValue = {"sender": "vera"}
    for _ in range(levels):
        condition = {"not": condition}
    return condition


def test_depth_and_number_of_tests_have_a_limit() -> None:
    PolicySets({"one": set_document(one_set(rule("r", "block", deep(8))))})
    PolicySets({"one": set_document(one_set(rule("r", "block", [{"sender": "x"}] * 200)))})
    refused: list[JSONValue] = [deep(9), [{"sender": "x"}] * 201]
    for condition in refused:
        with pytest.raises(Invalid):
            PolicySets({"one": set_document(one_set(rule("r", "block", condition)))})


def test_circles_of_use_are_named() -> None:
    documents = {
        name: set_document({"id": name, "policies": [{"use": other}]}) for name, other in (("a", "b"), ("b", "a"))
    }
    with pytest.raises(Invalid, match="a → b → a"):
        PolicySets(documents)


def test_sets_that_multiply_by_use_are_stopped() -> None:
    documents = {"s0": set_document(one_set(rule("r", "block"), id_="s0"))}
    for level in range(1, 12):
        uses = [{"use": f"s{level - 1}"}] * 10
        documents[f"s{level}"] = set_document({"id": f"s{level}", "policies": uses})
    with pytest.raises(Invalid, match="rules"):
        PolicySets(documents)


# ---------------------------------------------------------------- versions and files


async def test_each_activation_is_a_version_and_earlier_ones_are_kept(rights: LocalAuthorizer, tmp_path: Path) -> None:
    await activate(rights, one_set(rule("r", "block")))
    await activate(rights, one_set(rule("r", "allow")))

    assert rights.policy_sets.documents["one"].version == 2
    assert rights.folder.versions("one") == [1]
    assert rights.folder.earlier("one", 1).version == 1
    await rights.put_policy_set(rights.folder.earlier("one", 1))
    assert rights.policy_sets.documents["one"].version == 3
    assert not authorizer(tmp_path).decide(VERA, Operation.READ, SPEED).allowed
    with pytest.raises(Conflict):
        await activate(rights, one_set(rule("r", "allow"), version=3))
    with pytest.raises(NotFound):
        rights.folder.earlier("one", 9)


async def test_a_removed_set_no_longer_decides(rights: LocalAuthorizer, tmp_path: Path) -> None:
    await activate(rights, one_set(rule("r", "block")))
    await rights.remove_policy_set("one")

    for opened in (rights, authorizer(tmp_path)):
        assert opened.problem is None
        assert opened.decide(VERA, Operation.READ, SPEED).allowed
    with pytest.raises(NotFound):
        await rights.remove_policy_set("one")


def test_files_are_read_as_json_and_toml(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "one.json").write_text(json.dumps(one_set(rule("r", "block", {"sender": "vera"}))))
    (folder / "two.toml").write_text(
        'id = "two"\n[[policies]]\nid = "p"\n[[policies.rules]]\nid = "r"\neffect = "block"\n'
        'condition = { sender = "otto" }\n'
    )

    rights = authorizer(tmp_path)

    assert rights.problem is None
    assert rights.decide(VERA, Operation.READ, SPEED).rule == "policy one/p/r"
    assert rights.decide(OTTO, Operation.READ, SPEED).rule == "policy two/p/r"


@pytest.mark.parametrize(
    "content",
    ["", "  \n", "{", "null", "[]", '{"id":"other","policies":[]}', '{"id":"bad","id":"bad"}', "\x00", "{}" * 200_000],
    ids=range(9),
)
async def test_one_broken_file_denies_everything_but_the_repair_and_says_which(tmp_path: Path, content: str) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "bad.json").write_text(content)

    rights = authorizer(tmp_path)

    assert rights.problem is not None
    assert "bad.json" in rights.problem
    for principal in (VERA, OTTO, PUMP, ROOT):
        decision = rights.decide(principal, Operation.READ, SPEED)
        assert not decision.allowed
        assert "bad.json" in decision.rule
    assert rights.decide(ROOT, Operation.MANAGE, Address("dtw:authz:admin")).allowed

    await rights.remove_policy_set("bad")

    assert rights.problem is None
    assert rights.decide(VERA, Operation.READ, SPEED).allowed


async def test_a_broken_file_is_repaired_by_activating_a_good_one(tmp_path: Path) -> None:
    rights = authorizer(tmp_path)
    await activate(rights, one_set(rule("r", "block", {"sender": "otto"})))
    (tmp_path / "policies" / "one.json").write_text("{")
    rights = authorizer(tmp_path)
    assert not rights.decide(VERA, Operation.READ, SPEED).allowed

    await activate(rights, one_set(rule("r", "block", {"sender": "otto"})))

    assert rights.decide(VERA, Operation.READ, SPEED).allowed
    assert not rights.decide(OTTO, Operation.READ, SPEED).allowed


async def test_a_lost_file_of_an_active_set_denies_until_it_is_let_go(rights: LocalAuthorizer, tmp_path: Path) -> None:
    await activate(rights, one_set(rule("r", "block", {"sender": "otto"})))
    (tmp_path / "policies" / "one.json").unlink()

    opened = authorizer(tmp_path)

    assert "one" in (opened.problem or "")
    assert not opened.decide(VERA, Operation.READ, SPEED).allowed
    await opened.remove_policy_set("one")
    assert opened.decide(VERA, Operation.READ, SPEED).allowed


async def test_a_file_put_in_by_hand_counts_as_active_from_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "one.json").write_text(json.dumps(one_set(rule("r", "block"))))
    assert authorizer(tmp_path).problem is None
    (tmp_path / "policies" / "one.json").unlink()

    assert authorizer(tmp_path).problem is not None


async def test_reload_takes_edited_files_and_tells_of_broken_ones(rights: LocalAuthorizer, tmp_path: Path) -> None:
    await activate(rights, one_set(rule("r", "block")))
    changes = []
    rights.on_changed(lambda: changes.append(rights.version))
    path = tmp_path / "policies" / "one.json"
    path.write_text(path.read_text().replace('"block"', '"allow"'))
    assert not rights.decide(VERA, Operation.READ, SPEED).allowed

    await rights.reload()
    assert rights.decide(VERA, Operation.READ, SPEED).allowed

    path.write_text("")
    await rights.reload()
    assert not rights.decide(VERA, Operation.READ, SPEED).allowed
    assert len(changes) == 2


@pytest.mark.parametrize(
    "content", ["", "{", '{"v":2}', '{"v":1,"version":0,"roles":[],"rules":[],"policies":[],"x":1}']
)
async def test_damaged_rights_deny_everything_and_are_never_overwritten(tmp_path: Path, content: str) -> None:
    (tmp_path / "rights.json").write_text(content)

    rights = authorizer(tmp_path)

    assert "rights.json" in (rights.problem or "")
    assert not rights.decide(ROOT, Operation.READ, SPEED).allowed
    assert rights.decide(ROOT, Operation.MANAGE, Address("dtw:authz:admin")).allowed
    with pytest.raises(StorageDamaged):
        await activate(rights, one_set(rule("r", "block")))
    assert (tmp_path / "rights.json").read_text() == content

    (tmp_path / "rights.json").unlink()
    await rights.reload()
    assert rights.decide(VERA, Operation.READ, SPEED).allowed
