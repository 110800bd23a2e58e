"""The ids of built-in services: written once, and documented."""

import re
from pathlib import Path

import pytest

from things import service_ids
from things.service_ids import is_service

ROOT = Path(__file__).parents[2]
IDS = {value for name, value in vars(service_ids).items() if name.isupper() and isinstance(value, str)}
ROOMS = ("things", "runtime", "gateway", "bindings", "twin", "authn", "authz", "spark", "skep")


def test_no_module_spells_the_id_of_a_service_itself() -> None:
    spelled = re.compile("|".join(f"""["']{re.escape(one)}["']""" for one in sorted(IDS)))
    found = [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if path.name != "service_ids.py" and spelled.search(path.read_text("utf-8"))
    ]

    assert found == []


def test_every_service_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "sdk.md").read_text("utf-8")

    assert [one for one in IDS - {service_ids.RUNTIME} if f"| `{one}` |" not in text] == []


@pytest.mark.parametrize(
    ("thing_id", "expected"),
    [
        ("dtw:authn:admin", True),
        ("dtw:skep:anything", True),
        ("dtw:authnx:admin", False),
        ("dtw:pumps:authn", False),
        ("urn:authn:admin", False),
        ("dtw:", False),
        ("", False),
    ],
)
def test_things_of_the_runtimes_own_accounts_are_services(thing_id: str, expected: bool) -> None:
    assert is_service(thing_id) is expected
