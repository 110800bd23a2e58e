"""The table of rights, line by line, and the limits behind it."""

from pathlib import Path

import pytest

from authz.authorizer import LocalAuthorizer
from authz.documents import RoleDocument
from tests.authz.rights import LAMP, OTTO, PUMP, ROLLUP, ROOT, VERA, authorizer, who
from things.addresses import Address, Kind
from things.errors import Invalid, NotFound
from things.identity import AccountType, Principal
from things.messages import Operation
from things.parsing import parsed

pytestmark = pytest.mark.anyio

O = Operation  # noqa: E741 -- the table below is read as a table


@pytest.fixture
def rights(tmp_path: Path) -> LocalAuthorizer:
    return authorizer(tmp_path)


NOBODY, MANAGER = who("vera", "none"), who("otto", "manager")
SPEED = Address("dtw:pump:1", Kind.PROPERTY, "speed")
PUMP_THING, LAMP_THING, TABLE = Address("dtw:pump:1"), Address("dtw:lamp:1"), Address("dtw:rollup:hourly")
ENTRY, ADMIN_SERVICE, OWN_ACCOUNT = Address("urn:dev:7"), Address("dtw:authn:admin"), Address("dtw:authn:user")
REQUESTS, BROKER = Address("dtw:skep:requests"), Address("$SYS/broker/load")

TABLE_OF_RIGHTS = [
    (NOBODY, O.READ, SPEED, False),
    (NOBODY, O.SUBSCRIBE, PUMP_THING, False),
    (NOBODY, O.READ, OWN_ACCOUNT, False),
    (VERA, O.READ, SPEED, True),
    (VERA, O.OBSERVE, SPEED, True),
    (VERA, O.HISTORY, SPEED, True),
    (VERA, O.READ, OWN_ACCOUNT, True),
    (VERA, O.INVOKE_ACTION, PUMP_THING, False),
    (VERA, O.CALL_RPC, PUMP_THING, False),
    (VERA, O.WRITE_PROPERTY, SPEED, False),
    (VERA, O.MANAGE, ENTRY, False),
    (OTTO, O.INVOKE_ACTION, PUMP_THING, True),
    (OTTO, O.CALL_RPC, TABLE, True),
    (OTTO, O.CANCEL, Address("dtw:otto:requests"), True),
    (OTTO, O.WRITE_PROPERTY, SPEED, False),
    (OTTO, O.MANAGE, REQUESTS, False),
    (MANAGER, O.WRITE_PROPERTY, SPEED, True),
    (MANAGER, O.MANAGE, REQUESTS, True),
    (MANAGER, O.MANAGE, ENTRY, True),
    (MANAGER, O.PUBLISH_TD, ENTRY, True),
    (MANAGER, O.PUBLISH_TD, PUMP_THING, False),
    (MANAGER, O.MANAGE, ADMIN_SERVICE, False),
    (MANAGER, O.INVOKE_ACTION, ADMIN_SERVICE, False),
    (MANAGER, O.CALL_RPC, ADMIN_SERVICE, False),
    (MANAGER, O.WRITE_PROPERTY, ADMIN_SERVICE, False),
    (MANAGER, O.SUBSCRIBE, BROKER, False),
    (ROOT, O.MANAGE, ADMIN_SERVICE, True),
    (ROOT, O.SUBSCRIBE, BROKER, True),
    (ROOT, O.PUBLISH_TD, PUMP_THING, False),
    (ROOT, O.PUBLISH_EVENT, Address("dtw:root:1"), False),
    (ROOT, O.REPORT_STATUS, Address(""), False),
    (PUMP, O.PUBLISH_EVENT, PUMP_THING, True),
    (PUMP, O.PUBLISH_TD, PUMP_THING, True),
    (PUMP, O.REMOVE_TD, PUMP_THING, True),
    (PUMP, O.READ, SPEED, True),
    (PUMP, O.REPORT_STATUS, Address("dtw:pump:requests"), True),
    (PUMP, O.REPORT_STATUS, Address(""), True),
    (PUMP, O.PUBLISH_EVENT, LAMP_THING, False),
    (PUMP, O.PUBLISH_TD, ENTRY, False),
    (PUMP, O.READ, LAMP_THING, False),
    (PUMP, O.READ, TABLE, True),
    (PUMP, O.CALL_RPC, TABLE, True),
    (PUMP, O.CALL_RPC, LAMP_THING, False),
    (PUMP, O.INVOKE_ACTION, TABLE, False),
    (PUMP, O.MANAGE, ADMIN_SERVICE, False),
    (PUMP, O.CALL_RPC, ADMIN_SERVICE, False),
    (LAMP, O.PUBLISH_EVENT, Address("dtw:lamp"), False),
    (LAMP, O.PUBLISH_EVENT, Address("dtw:lam:p:1"), False),
    (ROLLUP, O.PUBLISH_PROPERTY, TABLE, True),
    (ROLLUP, O.WRITE_PROPERTY, SPEED, True),
    (ROLLUP, O.PUBLISH_PROPERTY, SPEED, False),
    (ROLLUP, O.PUBLISH_TD, ENTRY, True),
    (ROLLUP, O.MANAGE, ADMIN_SERVICE, False),
]


@pytest.mark.parametrize(("principal", "operation", "address", "expected"), TABLE_OF_RIGHTS)
def test_the_table_of_rights(
    rights: LocalAuthorizer, principal: Principal, operation: Operation, address: Address, expected: bool
) -> None:
    decision = rights.decide(principal, operation, address)

    assert decision.allowed is expected
    assert decision.rule


@pytest.mark.parametrize("role", ["", "Admin", "ADMIN", "admin ", "root", "gardener", "\x00", "*"])
def test_a_role_nobody_defined_may_do_nothing(rights: LocalAuthorizer, role: str) -> None:
    for operation in Operation:
        assert not rights.decide(who("vera", role), operation, PUMP_THING).allowed


def test_an_operation_on_a_malformed_twin_is_denied_to_all(rights: LocalAuthorizer) -> None:
    for thing in ("dtw:", "dtw:pump", "dtw::1", "dtw:pump:"):
        for principal in (ROOT, PUMP, ROLLUP, OTTO):
            assert not rights.decide(principal, Operation.READ, Address(thing)).allowed


GARDENER = {
    "name": "gardener",
    "base": "viewer",
    "grants": [{"operations": ["invoke_action", "call_rpc"], "things": ["dtw:pump:*"], "names": ["start", "stop"]}],
}


async def test_a_custom_role_adds_what_it_names_and_survives_a_restart(rights: LocalAuthorizer, tmp_path: Path) -> None:
    gina = who("gina", "gardener")
    assert not rights.decide(gina, Operation.READ, SPEED).allowed

    await rights.put_role(parsed(RoleDocument, GARDENER))

    for opened in (rights, authorizer(tmp_path)):
        assert opened.has_role("gardener")
        assert opened.decide(gina, Operation.READ, SPEED).allowed
        assert opened.decide(gina, Operation.INVOKE_ACTION, Address("dtw:pump:1", Kind.ACTION, "start")).allowed
        assert opened.decide(gina, Operation.CALL_RPC, Address("dtw:pump:1", Kind.ACTION, "stop")).allowed
        assert not opened.decide(gina, Operation.INVOKE_ACTION, Address("dtw:pump:1", Kind.ACTION, "reset")).allowed
        assert not opened.decide(gina, Operation.INVOKE_ACTION, Address("dtw:lamp:1", Kind.ACTION, "start")).allowed
        assert not opened.decide(gina, Operation.INVOKE_ACTION, Address("dtw:pump:1")).allowed


async def test_calling_needs_the_right_to_invoke(rights: LocalAuthorizer) -> None:
    await rights.put_role(parsed(RoleDocument, {"name": "caller", "grants": [{"operations": ["call_rpc"]}]}))

    assert not rights.decide(who("gina", "caller"), Operation.CALL_RPC, Address("dtw:pump:1", Kind.ACTION, "x")).allowed


async def test_a_removed_role_leaves_its_accounts_without_rights(rights: LocalAuthorizer) -> None:
    await rights.put_role(parsed(RoleDocument, GARDENER))
    version = rights.version
    assert rights.decide(who("gina", "gardener"), Operation.READ, SPEED).allowed

    await rights.remove_role("gardener")

    assert rights.version > version
    assert not rights.decide(who("gina", "gardener"), Operation.READ, SPEED).allowed
    with pytest.raises(NotFound):
        await rights.remove_role("gardener")
    with pytest.raises(NotFound):
        await rights.remove_role("viewer")


@pytest.mark.parametrize(
    "document",
    [
        {"name": "viewer"},
        {"name": "Bad Name"},
        {"name": "x", "base": "admin"},
        {"name": "x", "base": "nobody"},
        {"name": "x", "grants": [{"operations": ["manage"]}]},
        {"name": "x", "grants": [{"operations": ["publish_event"]}]},
        {"name": "x", "grants": [{"operations": ["fly"]}]},
        {"name": "x", "grants": [{"operations": []}]},
        {"name": "x", "grants": [{"operations": ["read"], "things": [""]}]},
        {"name": "x", "grants": [{"operations": ["read"], "thing": ["dtw:pump:*"]}]},
        {"name": "x", "grants": [{"operations": ["read"], "things": ["*" * 9]}]},
        {"base": "viewer"},
        [],
        None,
    ],
)
def test_a_role_that_means_nothing_is_refused(document: object) -> None:
    with pytest.raises(Invalid) as refusal:
        parsed(RoleDocument, document)

    assert refusal.value.problems


async def test_a_consumer_publishes_nothing_even_on_a_publishing_base(rights: LocalAuthorizer) -> None:
    await rights.put_role(parsed(RoleDocument, {"name": "odd", "base": "service"}))

    assert not rights.decide(who("vera", "odd"), Operation.PUBLISH_EVENT, Address("dtw:vera:1")).allowed


def test_a_new_service_account_is_seen_without_a_restart(tmp_path: Path) -> None:
    types: dict[str, AccountType] = {}
    rights = LocalAuthorizer.open(tmp_path, account_type=types.get, clock=lambda: 0)
    assert not rights.decide(PUMP, Operation.READ, Address("dtw:fresh:1")).allowed

    types["fresh"] = AccountType.SERVICE

    assert rights.decide(PUMP, Operation.READ, Address("dtw:fresh:1")).allowed
