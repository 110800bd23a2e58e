"""`skep audit`: listing, verifying, and exports that are verified without the gateway."""

import csv
import json
from pathlib import Path

import pytest

from tests.skep.commands import Skep

HOME = "site"


@pytest.fixture
def home(tmp_path: Path, skep: Skep) -> tuple[str, str]:
    (tmp_path / HOME).mkdir(mode=0o700)
    found = ("--home", str(tmp_path / HOME))
    for name in ("pump", "lamp"):
        skep("client", "add", name, "--type", "agent", *found)
    return found


def test_acts_are_listed_by_class_and_place(home: tuple[str, str], skep: Skep) -> None:
    whole = skep("audit", "ls", "--json", "--limit", "100", *home).json()
    added = skep("audit", "ls", "--json", "--class", "administration", *home).json()
    after = skep("audit", "ls", "--json", "--after", str(added[-1]["seq"] - 1), "--limit", "1", *home).json()

    assert [act["target"] for act in added if act["act"] == "account-added"] == ["pump", "lamp"]
    assert {act["class"] for act in whole} == {"administration", "access", "use", "refusals"}
    assert after == [added[-1]]
    assert "account-added" in skep("audit", "ls", *home).out
    assert skep("audit", "ls", "--class", "nothing", *home).code == 2


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_an_export_is_verified_with_the_public_key_alone(
    tmp_path: Path, home: tuple[str, str], skep: Skep, form: str
) -> None:
    key = skep("audit", "verify", "--json", *home).json()["key"]
    out = tmp_path / f"out.{form}"
    assert skep("audit", "export", "--format", form, "--out", str(out), *home).code == 0
    check = ("audit", "verify", "--json", "--file", str(out), "--key")

    assert skep(*check, key).json()["intact"] is True
    assert skep(*check, "A" * 43).code == 1
    assert skep(*check, "short").code == 7
    good = out.read_text()
    out.write_text(good.replace('"lamp"', '"lamb"').replace('""lamp""', '""lamb""'))
    assert skep(*check, key).code == 1
    lines = good.splitlines(keepends=True)
    out.write_text("".join([*lines[:2], *lines[3:]]))
    assert skep(*check, key).code == 1


def test_an_export_as_csv_starts_no_formula(tmp_path: Path, home: tuple[str, str], skep: Skep) -> None:
    log = tmp_path / HOME / "audit" / "000001.jsonl"
    act = json.loads(log.read_text().splitlines()[-1])
    log.write_text(log.read_text() + json.dumps({**act, "seq": 999, "target": "=1+1", "by": "\x1b[31m"}) + "\n")

    shown = [*csv.DictReader(skep("audit", "export", "--format", "csv", *home).out.splitlines())][-1]

    assert (shown["target"], shown["by"]) == ("'=1+1", "\\u001b[31m")


def test_what_was_taken_out_is_told_with_exit_code_1(tmp_path: Path, home: tuple[str, str], skep: Skep) -> None:
    assert skep("audit", "verify", *home).code == 0
    log = tmp_path / HOME / "audit" / "000001.jsonl"
    log.write_bytes(log.read_bytes().partition(b"\n")[2])

    said = skep("audit", "verify", *home)

    assert said.code == 1
    assert said.out.startswith("broken · ")


def test_a_witness_is_told_by_configuration(tmp_path: Path, home: tuple[str, str], skep: Skep) -> None:
    witness = tmp_path / "elsewhere.log"
    (tmp_path / HOME / "skep.toml").write_text(f'[audit]\nwitness = "{witness}"\n')
    skep("client", "add", "door", "--type", "agent", *home)

    assert json.loads(witness.read_text().splitlines()[-1])["heads"]["administration"][0] > 1
    verdict = skep("audit", "verify", "--json", *home).json()
    assert (verdict["intact"], verdict["anchors"] >= 2) == (True, True)


def test_key_and_anchors_are_for_exports(home: tuple[str, str], skep: Skep) -> None:
    assert skep("audit", "verify", "--key", "A" * 43, *home).code == 2
