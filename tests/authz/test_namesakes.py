"""Rules and policies mean accounts, not names: who gets a name later is somebody else."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from authz.authorizer import LocalAuthorizer
from authz.documents import RuleDocument
from authz.naming import senders
from authz.policy.sets import set_document
from tests.authz.rights import NOON, ROOT, account_type
from things.addresses import Address, Kind
from things.identity import AccountType, Principal
from things.messages import JSONValue, Operation
from things.parsing import parsed

pytestmark = pytest.mark.anyio

START = Address("dtw:pump:1", Kind.ACTION, "start")


@dataclass
class Names:
    """Who has which name now, and an installation that asks."""

    home: Path
    ids: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def rights(self) -> Iterator[LocalAuthorizer]:
        """As after a restart."""
        opened = LocalAuthorizer.open(
            self.home, account_type=account_type, clock=lambda: NOON, identity_of=self.ids.get
        )
        assert opened.problem is None
        yield opened

    def may(self, rights: LocalAuthorizer, account_id: str, role: str = "viewer", name: str = "otto") -> bool:
        principal = Principal(account=name, type=AccountType.CONSUMER, role=role, account_id=account_id)
        return rights.decide(principal, Operation.INVOKE_ACTION, START).allowed

    async def add(self, rights: LocalAuthorizer, account_id: str, name: str = "otto") -> None:
        self.ids[name] = account_id
        await rights.account_added(name)


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return Names(tmp_path)


async def allow(rights: LocalAuthorizer, **rule: Any) -> None:
    document = {"id": "r", "effect": "allow", "thing": "dtw:pump:*", "accounts": ["otto"], **rule}
    await rights.put_rule(parsed(RuleDocument, document), ROOT)


async def let(rights: LocalAuthorizer, target: Any, effect: str = "allow") -> None:
    rule = {"id": "r", "effect": effect, "target": target}
    document = {"id": "let", "policies": [{"id": "p", "rules": [rule]}]}
    await rights.put_policy_set(set_document(document))


async def test_a_rule_is_about_the_account_that_had_the_name(names: Names) -> None:
    names.ids["otto"] = "1"
    with names.rights() as rights:
        await allow(rights)
        assert names.may(rights, "1")
        await names.add(rights, "2")
        assert not names.may(rights, "2")
    with names.rights() as rights:
        assert not names.may(rights, "2")
        assert names.may(rights, "1")
        await allow(rights)  # set again, it means who has the name now
        assert names.may(rights, "2")
        assert not names.may(rights, "1")


async def test_a_denial_is_about_the_account_that_had_the_name_too(names: Names) -> None:
    names.ids["otto"] = "1"
    with names.rights() as rights:
        await allow(rights, effect="deny")
        assert not names.may(rights, "1", role="operator")
        await names.add(rights, "2")
        assert names.may(rights, "2", role="operator")


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_name_that_nobody_had_means_the_first_who_gets_it(names: Names, restarted: bool) -> None:
    with names.rights() as rights:
        await allow(rights)
        if not restarted:
            await names.add(rights, "1")
    names.ids["otto"] = "1"
    with names.rights() as rights:
        assert names.may(rights, "1")
        await names.add(rights, "2")
        assert not names.may(rights, "2")


async def test_a_rule_by_role_or_for_everybody_knows_no_names(names: Names) -> None:
    names.ids["otto"] = "1"
    with names.rights() as rights:
        await allow(rights, accounts=[], roles=["viewer"])
        await names.add(rights, "2")
        assert names.may(rights, "2")


@pytest.mark.parametrize(
    ("target", "for_namesake"),
    [
        ({"sender": "otto"}, False),
        ({"sender": ["gina", "otto"]}, False),
        ({"sender": {"in": ["otto"]}}, False),
        ({"allOf": [{"sender": {"equals": "otto"}}, {"name": "start"}]}, False),
        ({"sender": "ot*"}, True),
        ({"sender": {"exists": True}}, True),
        ({"not": {"sender": "gina"}}, True),
    ],
)
async def test_a_policy_is_about_the_account_that_had_the_name(names: Names, target: Any, for_namesake: bool) -> None:
    names.ids["otto"] = "1"
    with names.rights() as rights:
        await let(rights, target)
        assert names.may(rights, "1")
        await names.add(rights, "2")
        assert names.may(rights, "2") is for_namesake
    with names.rights() as rights:
        assert names.may(rights, "2") is for_namesake
        assert names.may(rights, "1")
        await let(rights, target)
        assert names.may(rights, "2")


async def test_a_block_by_name_does_not_pass_to_a_namesake(names: Names) -> None:
    names.ids["otto"] = "1"
    with names.rights() as rights:
        await let(rights, {"sender": "otto"}, effect="block")
        assert not names.may(rights, "1", role="operator")
        await names.add(rights, "2")
        assert names.may(rights, "2", role="operator")


async def test_a_policy_file_that_was_changed_means_those_that_have_the_names_by_then(names: Names) -> None:
    names.ids["otto"] = "1"
    with names.rights() as rights:
        await let(rights, {"sender": "otto"})
        await names.add(rights, "2")
        file = names.home / "policies" / "let.json"
        document = json.loads(file.read_text())
        await rights.reload()
        assert not names.may(rights, "2")
        document["description"] = "looked through"
        file.write_text(json.dumps(document))
        await rights.reload()
        assert names.may(rights, "2")
    with names.rights() as rights:
        assert names.may(rights, "2")


async def test_what_an_earlier_version_kept_means_those_that_have_the_names(names: Names) -> None:
    names.ids["otto"] = "1"
    with names.rights() as rights:
        await allow(rights)
        await let(rights, {"sender": "gina"})
    file = names.home / "rights.json"
    kept = json.loads(file.read_text())
    del kept["meant"], kept["rules"][0]["accountIDs"]
    file.write_text(json.dumps(kept))
    names.ids["gina"] = "7"

    with names.rights() as rights:
        await names.add(rights, "2")
        await names.add(rights, "8", "gina")
        assert names.may(rights, "1")
        assert not names.may(rights, "2")
        assert names.may(rights, "7", name="gina")
        assert not names.may(rights, "8", name="gina")


def test_names_are_found_wherever_a_policy_may_say_them() -> None:
    document: JSONValue = {
        "target": {"sender": "a"},
        "policies": [{"rules": [{"target": [{"not": {"sender": ["b", "c*"]}}]}]}],
    }
    condition: JSONValue = {"anyOf": [{"sender": {"equals": "d"}}, {"payload/sender": "x"}, {"role": "y"}]}

    assert sorted(senders([document, condition])) == ["a", "b", "d"]
