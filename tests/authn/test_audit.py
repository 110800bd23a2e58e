"""The audit log: complete, chained, signed, and impossible to forge by a name."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import authn.audit.chain
import authn.audit.log
from authn.audit import Audit, Class, Verdict, verify
from authn.audit.acts import text

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000_123_456


def opened(folder: Path, **given: Any) -> Audit:
    return Audit(folder / "audit", lambda: NOW, keys=folder / "keys", **given)


def verdict_of(folder: Path) -> Verdict:
    return verify(folder / "audit")


def acts(folder: Path) -> list[dict[str, Any]]:
    """Those of administration, without what the log says of itself."""
    found = [json.loads(line) for path in sorted((folder / "audit").glob("*.jsonl")) for line in path.open()]
    return [act for act in found if act["act"] != "log"]


async def fifteen_acts(folder: Path) -> None:
    audit = opened(folder)
    for number in range(15):
        audit.record("account-added", by="root", target=f"pump-{number}", source="192.0.2.7")
    await audit.flush()
    audit.close()


async def test_fifteen_acts_make_fifteen_lines_and_an_intact_chain(tmp_path: Path) -> None:
    await fifteen_acts(tmp_path)

    verdict = verdict_of(tmp_path)

    assert (verdict.intact, verdict.acts, len(acts(tmp_path))) == (True, 15, 15)
    first = acts(tmp_path)[0]
    assert first["at"] == "2027-01-15T08:00:00.123456Z"
    assert (first["act"], first["by"], first["target"], first["outcome"]) == ("account-added", "root", "pump-0", "ok")


async def test_folder_that_cannot_be_synced_makes_no_act_stand_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_folder: Path) -> None:
        raise OSError("no folder is synced here")

    monkeypatch.setattr(authn.audit.chain, "sync", refused)
    await fifteen_acts(tmp_path)

    assert verdict_of(tmp_path).intact
    assert [act["target"] for act in acts(tmp_path)] == [f"pump-{number}" for number in range(15)]


@pytest.mark.parametrize("place", [0, 7, 15])
async def test_one_changed_byte_is_found_at_its_line(tmp_path: Path, place: int) -> None:
    await fifteen_acts(tmp_path)
    path = tmp_path / "audit" / "000001.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    begins = sum(map(len, lines[:place]))
    for at in range(begins, begins + len(lines[place]), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])

        verdict = verdict_of(tmp_path)

        assert (verdict.intact, verdict.file, verdict.line) == (False, "000001.jsonl", place + 1), at


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
        verdict = verdict_of(tmp_path)
        assert (verdict.intact, verdict.line) == (False, place)


@pytest.mark.parametrize("gone", [1, 3])
async def test_lines_that_are_missing_at_the_beginning_are_found(tmp_path: Path, gone: int) -> None:
    await fifteen_acts(tmp_path)
    path = tmp_path / "audit" / "000001.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[gone:]))

    assert not verdict_of(tmp_path).intact


async def test_a_chain_made_anew_without_the_key_is_found_at_its_first_line(tmp_path: Path) -> None:
    await fifteen_acts(tmp_path)
    path = tmp_path / "audit" / "000001.jsonl"
    made, previous = [], ""
    for number, line in enumerate(path.read_text().splitlines()):
        act = json.loads(line)
        if number >= 5:
            act = {**act, "by": "mallory", "prev": previous}
        made.append(text(act))
        previous = hashlib.sha256(made[-1].encode()).hexdigest()
    path.write_text("\n".join(made) + "\n")

    verdict = verdict_of(tmp_path)

    assert (verdict.intact, verdict.line, verdict.reason) == (False, 6, "was changed")


async def test_a_log_signed_by_somebody_else_is_found_by_the_key(tmp_path: Path) -> None:
    await fifteen_acts(tmp_path / "ours")
    await fifteen_acts(tmp_path / "theirs")
    ours = verdict_of(tmp_path / "ours").key

    verdict = verify(tmp_path / "theirs" / "audit", key=ours)

    assert (verdict.intact, verdict.reason) == (False, "is signed by another key")
    assert verify(tmp_path / "ours" / "audit", key=ours).intact


async def test_the_chain_goes_on_after_a_restart(tmp_path: Path) -> None:
    await fifteen_acts(tmp_path)
    await fifteen_acts(tmp_path)

    assert (verdict_of(tmp_path).intact, verdict_of(tmp_path).acts) == (True, 30)


async def test_a_key_that_is_gone_is_told_and_the_chain_goes_on(tmp_path: Path) -> None:
    await fifteen_acts(tmp_path)
    (tmp_path / "keys" / "audit.pem").unlink()
    await fifteen_acts(tmp_path)

    verdict = verdict_of(tmp_path)

    assert (verdict.intact, verdict.acts) == (True, 30)
    assert verdict.notes == ("administration: signed by a new key from line 17 on, 2027-01-15T08:00:00.123456Z",)


def earlier_log(folder: Path, count: int) -> None:
    """A log as it was before lines were signed."""
    previous = "0" * 64
    (folder / "audit").mkdir(parents=True)
    with (folder / "audit" / "000001.jsonl").open("w") as file:
        for seq in range(1, count + 1):
            body = {"seq": seq, "v": 1, "at": "2027-01-15T08:00:00Z", "act": "login", "by": "vera", "prev": previous}
            previous = hashlib.sha256(text(body).encode()).hexdigest()
            file.write(text({**body, "hash": previous}) + "\n")


async def test_a_log_of_the_earlier_version_goes_on_under_signatures(tmp_path: Path) -> None:
    earlier_log(tmp_path, 5)
    assert verdict_of(tmp_path).reason == "is not signed"

    await fifteen_acts(tmp_path)

    verdict = verdict_of(tmp_path)
    assert (verdict.intact, verdict.acts) == (True, 20)
    assert [act["seq"] for act in acts(tmp_path)] == [1, 2, 3, 4, 5, *range(7, 22)]


def without_the_first(path: Path) -> None:
    path.write_bytes(path.read_bytes().partition(b"\n")[2])


def with_another_name(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"vera"', b'"eve!"', 1))


def without_the_fifth(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], *lines[5:]]))


def with_an_unsigned_end(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]))


@pytest.mark.parametrize(
    "harm",
    [without_the_first, with_another_name, without_the_fifth, with_an_unsigned_end],
    ids=lambda one: one.__name__,
)
async def test_what_is_done_to_its_earlier_lines_is_found(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    earlier_log(tmp_path, 5)
    await fifteen_acts(tmp_path)

    harm(tmp_path / "audit" / "000001.jsonl")

    assert not verdict_of(tmp_path).intact


async def test_half_a_line_left_by_a_power_cut_is_moved_aside(tmp_path: Path) -> None:
    await fifteen_acts(tmp_path)
    path = tmp_path / "audit" / "000001.jsonl"
    path.write_bytes(path.read_bytes() + b'{"seq":17,"v":2,"at"')
    assert verdict_of(tmp_path).reason == "ends in half a line"

    await fifteen_acts(tmp_path)

    verdict = verdict_of(tmp_path)
    assert (verdict.intact, verdict.acts) == (True, 30)
    assert (tmp_path / "audit" / "000001.torn").read_bytes() == b'{"seq":17,"v":2,"at"'


async def test_the_chain_spans_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authn.audit.chain, "MAX_FILE_BYTES", 1_000)
    for _ in range(5):
        await fifteen_acts(tmp_path)

    verdict = verdict_of(tmp_path)

    assert (verdict.intact, verdict.acts) == (True, 75)
    assert len(list((tmp_path / "audit").glob("*.jsonl"))) > 1


async def test_old_files_go_and_the_rest_still_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authn.audit.chain, "MAX_FILE_BYTES", 1_000)
    monkeypatch.setitem(authn.audit.chain.MAX_FILES, Class.ADMINISTRATION, 3)
    for _ in range(8):
        await fifteen_acts(tmp_path)

    assert verdict_of(tmp_path).intact
    files = sorted((tmp_path / "audit").glob("*.jsonl"))
    assert [path.name for path in files] == ["000006.jsonl", "000007.jsonl", "000008.jsonl"]

    files[0].unlink()
    verdict = verdict_of(tmp_path)
    assert (verdict.intact, verdict.reason) == (False, "administration begins at line 97, and not at 81")


async def test_a_flood_of_one_class_displaces_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authn.audit.chain, "MAX_FILE_BYTES", 1_000)
    audit = opened(tmp_path)
    audit.record("account-added", by="root", target="mallory")
    for _ in range(60):
        for number in range(10):
            audit.record("action", by=f"mallory-{number}", target="dtw:works:door unlock")
        await audit.flush()
    audit.close()

    assert [act["target"] for act in acts(tmp_path)] == ["mallory"]
    assert len(list((tmp_path / "audit" / "use").glob("*.jsonl"))) == 16
    assert verdict_of(tmp_path).intact


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
    audit.record("role-set", by=name, target=name, source=name, outcome=name, details={name: name})
    audit.record("role-set", by="vera")
    await audit.flush()
    audit.close()

    content = (tmp_path / "audit" / "000001.jsonl").read_bytes()

    assert content.count(b"\n") == 3
    assert content.isascii()
    assert all(byte >= 0x20 or byte == 0x0A for byte in content)
    assert len(content) < 12_000
    assert verdict_of(tmp_path).intact
    assert json.loads(content.splitlines()[2])["by"] == "vera"


async def test_members_that_look_like_secrets_are_left_out(tmp_path: Path) -> None:
    audit = opened(tmp_path)
    audit.record("x", by="root", details={"password": "p", "accessToken": "t", "tokenID": "id", "claimCode": "c"})
    await audit.flush()
    audit.close()

    assert acts(tmp_path)[0]["details"] == {"tokenID": "id"}


async def test_a_full_disk_delays_acts_and_loses_none(tmp_path: Path) -> None:
    audit = opened(tmp_path)
    (tmp_path / "audit" / "access").rmdir()
    audit.record("login", by="vera")
    audit.record("role-set", by="vera")
    with pytest.raises(TimeoutError):
        await audit.flush(timeout_s=0.2)
    assert audit.problem == "the audit log cannot be written"

    (tmp_path / "audit" / "access").mkdir()
    await audit.flush()
    audit.close()

    assert not audit.failed
    assert verdict_of(tmp_path).acts == 2


async def test_an_overflow_is_recorded_as_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authn.audit.log, "MAX_QUEUED", 5)
    audit = opened(tmp_path)
    (tmp_path / "audit" / "access").rmdir()
    for number in range(8):
        audit.record("login", by=f"vera-{number}")
    (tmp_path / "audit" / "access").mkdir()
    await audit.flush()
    audit.close()

    logins = audit.read(after=None, limit=100, class_=Class.ACCESS)
    assert [act["by"] for act in logins if act["act"] == "login"] == [f"vera-{number}" for number in range(5)]
    assert [act["details"] for act in acts(tmp_path) if act["act"] == "audit-gap"] == [{"acts": "3"}]


class Seconds:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_flood_of_one_account_is_sampled_and_counted_and_leaves_others_whole(tmp_path: Path) -> None:
    seconds = Seconds()
    audit = opened(tmp_path, monotonic=seconds)
    for number in range(5_000):
        audit.record("action", by="mallory", target=f"dtw:works:door unlock {number}")
    audit.record("action", by="vera")
    audit.record("role-set", by="mallory")
    await audit.flush()
    seconds.now += 2
    for _ in range(3):
        audit.record("action", by="mallory")
    await audit.flush()
    audit.close()

    used = [act for act in audit.read(after=None, limit=10_000, class_=Class.USE) if act["act"] != "log"]
    ofs = [act for act in used if act["by"] == "mallory"]
    assert len(ofs) == 1_000 + 2 + 1
    assert [act["omitted"] for act in ofs if "omitted" in act] == [4_000, 1]
    assert [act["by"] for act in used].count("vera") == 1
    assert [act["by"] for act in acts(tmp_path)] == ["mallory"]


async def test_strangers_share_a_budget_whatever_names_and_addresses_they_use(tmp_path: Path) -> None:
    audit = opened(tmp_path, monotonic=Seconds())
    for number in range(3_000):
        audit.record("login", by=f"guess-{number}", outcome="refused", source=f"192.0.{number % 200}.{number % 7}")
    audit.record("login", by="vera", source="192.0.2.1")
    await audit.flush()
    audit.close()

    refused = [act for act in audit.read(after=None, limit=10_000, class_=Class.REFUSALS) if act["act"] != "log"]
    assert sum(1 for act in refused if act["by"] != "?") == 1_000
    assert sum(int(str(act.get("omitted", 0))) for act in refused) == 2_000
    assert [act["by"] for act in audit.read(after=None, limit=100, class_=Class.ACCESS)] == ["skep", "vera"]


async def test_acts_are_read_in_one_order_over_all_classes_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authn.audit.chain, "MAX_FILE_BYTES", 1_000)
    audit = opened(tmp_path)
    for number in range(30):
        audit.record("role-set" if number % 3 else "action", by="root", target=f"{number}")
        await audit.flush()
    audit.close()

    whole = audit.read(after=0, limit=1_000)
    numbers = [int(str(act["seq"])) for act in whole]
    assert numbers == sorted(numbers)
    assert [act["target"] for act in whole if act["act"] != "log"] == [str(number) for number in range(30)]
    assert audit.read(after=None, limit=7) == whole[-7:]
    paged, after = [], 0
    while page := audit.read(after=after, limit=4):
        paged += page
        after = int(str(page[-1]["seq"]))
    assert paged == whole
