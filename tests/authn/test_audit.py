"""The audit log: complete, chained, and impossible to forge by a name."""

import json
from pathlib import Path

import pytest

import authn.audit
from authn.audit import Audit, verify

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000_123_456


def opened(folder: Path) -> Audit:
    return Audit(folder / "audit", lambda: NOW)


def lines(folder: Path) -> list[str]:
    return [line for path in sorted((folder / "audit").glob("*.jsonl")) for line in path.read_text().splitlines()]


async def fifteen_acts(folder: Path) -> None:
    audit = opened(folder)
    for number in range(15):
        audit.record("account-added", by="root", target=f"pump-{number}", source="192.0.2.7")
    await audit.flush()
    audit.close()


async def test_fifteen_acts_make_fifteen_lines_and_an_intact_chain(tmp_path: Path) -> None:
    await fifteen_acts(tmp_path)

    verdict = verify(tmp_path / "audit")

    assert (verdict.intact, verdict.acts, len(lines(tmp_path))) == (True, 15, 15)
    first = json.loads(lines(tmp_path)[0])
    assert first["at"] == "2027-01-15T08:00:00.123456Z"
    assert (first["act"], first["by"], first["target"], first["outcome"]) == ("account-added", "root", "pump-0", "ok")


@pytest.mark.parametrize("place", [0, 7, 14])
async def test_one_changed_byte_is_found_at_its_line(tmp_path: Path, place: int) -> None:
    await fifteen_acts(tmp_path)
    path = tmp_path / "audit" / "000001.jsonl"
    changed = path.read_bytes().split(b"\n")
    changed[place] = changed[place].replace(b'"by":"root"', b'"by":"rOot"')
    path.write_bytes(b"\n".join(changed))

    verdict = verify(tmp_path / "audit")

    assert (verdict.intact, verdict.file, verdict.line) == (False, "000001.jsonl", place + 1)
    assert verdict.reason == "was changed"


async def test_a_removed_swapped_or_inserted_line_is_found(tmp_path: Path) -> None:
    await fifteen_acts(tmp_path)
    path = tmp_path / "audit" / "000001.jsonl"
    good = path.read_text().splitlines()
    cases = {
        4: [*good[:3], *good[4:]],
        5: [*good[:4], good[5], good[4], *good[6:]],
        6: [*good[:5], good[2], *good[5:]],
    }
    for place, bad in cases.items():
        path.write_text("\n".join(bad) + "\n")
        verdict = verify(tmp_path / "audit")
        assert (verdict.intact, verdict.line) == (False, place)


async def test_a_line_rewritten_with_a_fitting_hash_breaks_the_next(tmp_path: Path) -> None:
    await fifteen_acts(tmp_path)
    path = tmp_path / "audit" / "000001.jsonl"
    good = path.read_text().splitlines()
    act = json.loads(good[4])
    act.pop("hash")
    act["by"] = "mallory"
    act["hash"] = authn.audit._hash_of(act)
    good[4] = json.dumps(act, separators=(",", ":"))
    path.write_text("\n".join(good) + "\n")

    verdict = verify(tmp_path / "audit")

    assert (verdict.intact, verdict.line) == (False, 6)


async def test_the_chain_goes_on_after_a_restart(tmp_path: Path) -> None:
    await fifteen_acts(tmp_path)
    await fifteen_acts(tmp_path)

    assert (verify(tmp_path / "audit").intact, verify(tmp_path / "audit").acts) == (True, 30)


async def test_half_a_line_left_by_a_power_cut_is_moved_aside(tmp_path: Path) -> None:
    await fifteen_acts(tmp_path)
    path = tmp_path / "audit" / "000001.jsonl"
    path.write_bytes(path.read_bytes() + b'{"seq":16,"v":1,"at"')
    assert not verify(tmp_path / "audit").intact

    await fifteen_acts(tmp_path)

    verdict = verify(tmp_path / "audit")
    assert (verdict.intact, verdict.acts) == (True, 30)
    assert (tmp_path / "audit" / "000001.torn").read_bytes() == b'{"seq":16,"v":1,"at"'


async def test_the_chain_spans_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authn.audit, "MAX_FILE_BYTES", 1_000)
    for _ in range(5):
        await fifteen_acts(tmp_path)

    verdict = verify(tmp_path / "audit")

    assert (verdict.intact, verdict.acts) == (True, 75)
    assert len(list((tmp_path / "audit").glob("*.jsonl"))) > 1


async def test_old_files_go_and_the_rest_still_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authn.audit, "MAX_FILE_BYTES", 1_000)
    monkeypatch.setattr(authn.audit, "MAX_FILES", 3)
    for _ in range(8):
        await fifteen_acts(tmp_path)

    verdict = verify(tmp_path / "audit")

    assert verdict.intact
    assert len(list((tmp_path / "audit").glob("*.jsonl"))) == 3


HOSTILE = [
    'x\n{"seq":99,"act":"claim","by":"mallory"}',
    "x\r\nfake",
    "x\u2028fake\u2029fake\x85fake",
    "\x1b[2J\x1b[31mred",
    "\u202etxet",
    '","by":"mallory","x":"',
    "\x00",
    "\ud800",
    "a" * 65_536,
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_hostile_name_stays_on_its_line(tmp_path: Path, name: str) -> None:
    audit = opened(tmp_path)
    audit.record("login", by=name, target=name, source=name, outcome=name, details={name: name})
    audit.record("login", by="vera")
    await audit.flush()
    audit.close()

    content = (tmp_path / "audit" / "000001.jsonl").read_bytes()

    assert content.count(b"\n") == 2
    assert content.isascii()
    assert all(byte >= 0x20 or byte == 0x0A for byte in content)
    assert len(content) < 12_000
    assert verify(tmp_path / "audit").intact
    assert json.loads(content.splitlines()[1])["by"] == "vera"


async def test_members_that_look_like_secrets_are_left_out(tmp_path: Path) -> None:
    audit = opened(tmp_path)
    audit.record("x", by="root", details={"password": "p", "accessToken": "t", "tokenID": "id", "claimCode": "c"})
    await audit.flush()
    audit.close()

    assert json.loads(lines(tmp_path)[0])["details"] == {"tokenID": "id"}


async def test_a_full_disk_delays_acts_and_loses_none(tmp_path: Path) -> None:
    audit = opened(tmp_path)
    (tmp_path / "audit").rmdir()
    audit.record("login", by="vera")
    with pytest.raises(TimeoutError):
        await audit.flush(timeout_s=0.2)
    assert audit.failed

    (tmp_path / "audit").mkdir()
    await audit.flush()
    audit.close()

    assert not audit.failed
    assert verify(tmp_path / "audit").acts == 1


async def test_an_overflow_is_recorded_as_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authn.audit, "MAX_QUEUED", 5)
    audit = opened(tmp_path)
    (tmp_path / "audit").rmdir()
    for number in range(8):
        audit.record("login", by=f"vera-{number}")
    (tmp_path / "audit").mkdir()
    await audit.flush()
    audit.close()

    acts = [json.loads(line) for line in lines(tmp_path)]

    assert [act["by"] for act in acts if act["act"] == "login"] == [f"vera-{number}" for number in range(5)]
    assert [act["details"] for act in acts if act["act"] == "audit-gap"] == [{"acts": "3"}]
