"""What the documentation says of services, roles and policies is so."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from authn.authenticator import LocalAuthenticator
from authn.own_service import AuthnUser
from authn.service import AuthnAdmin
from authz.documents import RoleDocument, RuleDocument
from authz.policy.facts import CONDITIONAL, STATIC
from authz.policy.sets import PolicySets, set_document
from authz.roles import BUILT_IN
from authz.service import AuthzAdmin, AuthzUser
from tests.authz.rights import NOON, authorizer
from things.parsing import parsed
from things.service_ids import ACCOUNTS, OWN_ACCOUNT

TEXT = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def services(home: Path) -> list[Any]:
    authenticator = LocalAuthenticator.open(home, clock=lambda: NOON)
    authenticator.close()
    rights = authorizer(home)
    return [
        AuthnAdmin(authenticator),
        AuthnUser(authenticator),
        AuthzAdmin(rights, accounts=lambda _: None, clock=lambda: NOON),
        AuthzUser(rights, clock=lambda: NOON),
    ]


def section(thing_id: str) -> str:
    begin = TEXT.index(f"**`{thing_id}`**")
    end = re.search(r"\n(\*\*`dtw:|## |A question, )", TEXT[begin + 5 :])
    assert end is not None
    return TEXT[begin : begin + 5 + end.start()]


def test_every_method_is_documented_with_its_input_and_no_other(tmp_path: Path) -> None:
    for service in services(tmp_path):
        text = section(service.thing_id)
        for name, action in service.td["actions"].items():
            assert f"`{name}`" in text
            line = next((line for line in text.splitlines() if line.startswith("|") and f"`{name}`" in line), None)
            members = action.get("input", {}).get("properties", {})
            if line is None or name in {"explain", "listTokens", "listSessions"}:
                continue
            assert [member for member in members if member not in line] == []
        rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
        named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        assert named <= set(service.td["actions"])


def test_every_role_and_attribute_is_documented() -> None:
    for role in BUILT_IN:
        assert f"| {role} |" in TEXT
    for attribute in STATIC | CONDITIONAL:
        assert f"`{attribute}`" in TEXT


def test_the_examples_are_good() -> None:
    examples = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]
    role, rule, policy, asking = examples

    assert parsed(RoleDocument, role).rights().name == "gardener"
    assert parsed(RuleDocument, rule).id == "no-reset"
    assert PolicySets({"night": set_document(policy)}).documents["night"].priority == 10
    asks = {"id": "asks", "policies": [{"id": "all", "rules": [asking]}]}
    assert PolicySets({"asks": set_document(asks)}).documents["asks"].version == 1


@pytest.mark.parametrize("thing_id", [ACCOUNTS, OWN_ACCOUNT])
def test_thing_ids_are_those_documented(thing_id: str) -> None:
    assert f"`{thing_id}`" in TEXT
