"""Whoever can rewrite the audit log cannot rewrite what witnesses were told of it."""

import json
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from authn.audit import Audit, Syslog, Verdict, Witness, WitnessFile, read_anchors, verify
from authn.audit.anchors import MAX_WITNESS_BYTES
from things.errors import ConfigInvalid

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000_123_456


async def run(folder: Path, *names: str, witnesses: Sequence[Witness] = (), restored: bool = False) -> Audit:
    """A life of a gateway in which accounts of these names are added."""
    audit = Audit(folder / "audit", lambda: NOW, keys=folder / "keys")
    audit.anchor_to(witnesses, gateway="gw-1", restored=restored)
    for name in names:
        audit.record("account-added", by="root", target=name)
        audit.record("action", by="root", target=f"dtw:works:{name} unlock")
    await audit.flush()
    audit.close()
    return audit


def log_of(folder: Path) -> Path:
    return folder / "audit" / "000001.jsonl"


def cut_at_the_end(folder: Path) -> None:
    log_of(folder).write_bytes(b"".join(log_of(folder).read_bytes().splitlines(keepends=True)[:-1]))


def emptied(folder: Path) -> None:
    log_of(folder).write_bytes(b"")


def removed(folder: Path) -> None:
    log_of(folder).unlink()


def without_one_class(folder: Path) -> None:
    shutil.rmtree(folder / "audit" / "use")


@pytest.mark.parametrize("harm", [cut_at_the_end, emptied, removed, without_one_class], ids=lambda one: one.__name__)
async def test_what_is_cut_off_is_found_at_the_next_start_and_by_verifying(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    audit = await run(tmp_path, "pump", "lamp")
    assert audit.verify().intact
    harm(tmp_path)

    assert not audit.verify().intact
    following = await run(tmp_path, "door")

    assert "not as it was left" in (following.problem or "")
    acts = [act["act"] for act in following.read(after=None, limit=100)]
    assert "audit-broken" in acts


async def made_anew(folder: Path) -> None:
    """By somebody with the key: signed, chained, without `mallory`, and with a head that fits."""
    names = [json.loads(line).get("target") for line in log_of(folder).read_text().splitlines()]
    shutil.rmtree(folder / "audit")
    (folder / "keys" / "audit-head.json").unlink()
    await run(folder, *(name for name in names if name not in (None, "mallory")))


async def test_a_chain_made_anew_with_the_key_is_found_by_a_witness(tmp_path: Path) -> None:
    witness = WitnessFile(tmp_path / "elsewhere.log")
    await run(tmp_path / "home", "pump", "mallory", "lamp", witnesses=[witness])
    await made_anew(tmp_path / "home")

    following = await run(tmp_path / "home", "door", witnesses=[witness])

    assert "elsewhere.log" in (following.problem or "")
    assert not following.verify().intact  # for good, though the witness was told of the new chain since
    assert not (await run(tmp_path / "home", witnesses=[witness])).verify().intact


async def test_a_beginning_that_is_claimed_to_have_been_dropped_is_found_by_a_witness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = WitnessFile(tmp_path / "elsewhere.log")
    await run(tmp_path / "home", "mallory", witnesses=[witness])
    shutil.rmtree(tmp_path / "home" / "audit")
    (tmp_path / "home" / "keys" / "audit-head.json").unlink()
    forging = Audit(tmp_path / "home" / "audit", lambda: NOW, keys=tmp_path / "home" / "keys")
    forging._seq = 1_000  # as if all that a witness knows were too old to be kept
    forging._log_id = read_anchors((tmp_path / "elsewhere.log").read_bytes().splitlines())[0].log
    forging.anchor_to([witness], gateway="gw-1")
    forging.record("account-added", by="root", target="pump")
    await forging.flush()
    forging.close()

    verdict = forging.verify()

    assert (verdict.intact, "dropped at once" in (verdict.reason or "")) == (False, True)


async def test_a_restore_goes_on_and_says_what_is_gone(tmp_path: Path) -> None:
    witness = WitnessFile(tmp_path / "elsewhere.log")
    await run(tmp_path / "home", "pump", witnesses=[witness])
    shutil.copytree(tmp_path / "home", tmp_path / "backup")
    await run(tmp_path / "home", "lamp", "door", witnesses=[witness])
    shutil.rmtree(tmp_path / "home")
    shutil.copytree(tmp_path / "backup", tmp_path / "home")

    restored = await run(tmp_path / "home", "valve", witnesses=[witness], restored=True)
    following = await run(tmp_path / "home", "siren", witnesses=[witness])

    assert (restored.problem, following.problem) == (None, None)
    verdict = following.verify()
    assert (verdict.intact, verdict.acts) == (True, 6)
    assert any("restored from a backup" in note for note in verdict.notes)
    assert any("is gone by a restore" in note for note in verdict.notes)


async def test_a_copy_put_back_without_a_restore_is_found(tmp_path: Path) -> None:
    witness = WitnessFile(tmp_path / "elsewhere.log")
    await run(tmp_path / "home", "pump", witnesses=[witness])
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    await run(tmp_path / "home", "mallory", witnesses=[witness])
    shutil.rmtree(tmp_path / "home")
    shutil.copytree(tmp_path / "copy", tmp_path / "home")

    assert "not as it was left" in ((await run(tmp_path / "home", witnesses=[witness])).problem or "")


async def test_a_forged_anchor_is_found(tmp_path: Path) -> None:
    witness = WitnessFile(tmp_path / "elsewhere.log")
    audit = await run(tmp_path / "home", "pump", witnesses=[witness])
    known = (tmp_path / "elsewhere.log").read_bytes()
    (tmp_path / "elsewhere.log").write_bytes(known.replace(b'"gw-1","at":"2027', b'"gw-1","at":"2028'))

    verdict = audit.verify()

    assert (verdict.intact, verdict.reason) == (
        False,
        "the anchor of 2028-01-15T08:00:00.123456Z is not signed by the gateway",
    )


async def test_anchors_of_other_gateways_say_nothing_of_this_one(tmp_path: Path) -> None:
    witness = WitnessFile(tmp_path / "elsewhere.log")
    ours = await run(tmp_path / "ours", "pump", witnesses=[witness])
    theirs = Audit(tmp_path / "theirs" / "audit", lambda: NOW, keys=tmp_path / "theirs" / "keys")
    theirs.anchor_to([witness], gateway="gw-2")
    theirs.record("account-added", by="root", target="pump")
    await theirs.flush()
    theirs.close()

    verdict = ours.verify()

    assert (verdict.intact, verdict.notes) == (True, ("1 anchors of other gateways were left out",))


async def test_a_witness_that_cannot_be_told_is_named_and_holds_up_nothing(tmp_path: Path) -> None:
    witness = WitnessFile(tmp_path / "missing" / "elsewhere.log")

    audit = await run(tmp_path / "home", "pump", witnesses=[witness])

    assert audit.problem == f"a witness of the audit log cannot be told: {witness.name}"
    (tmp_path / "missing").mkdir()
    assert (await run(tmp_path / "home", "lamp", witnesses=[witness])).problem is None
    assert len(witness.anchors()) == 1


async def test_a_witness_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.log"
    witness = WitnessFile(path)
    await run(tmp_path / "home", "pump", witnesses=[witness])
    with path.open("ab") as file:
        file.write(b"x" * MAX_WITNESS_BYTES + b"\n")

    await run(tmp_path / "home", "lamp", witnesses=[witness])
    audit = await run(tmp_path / "home", "door", witnesses=[witness])

    assert path.stat().st_size < 2_000
    assert (len(witness.anchors()), audit.verify().intact) == (3, True)


async def test_syslog_is_told_what_its_lines_are_verified_with(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        syslog = Syslog(f"127.0.0.1:{server.getsockname()[1]}")
        audit = await run(tmp_path, "pump", witnesses=[syslog])
        told = server.recv(65_536)

    assert told.startswith(b"<86>skep-audit: ")
    anchors = read_anchors([b"Nov 22 12:00:00 host " + told])
    assert len(told) < 1_024
    checked: Verdict = verify(tmp_path / "audit", key=audit.key, gateway="gw-1", anchors=anchors)
    assert (checked.intact, checked.anchors) == (True, 1)
    cut_at_the_end(tmp_path)
    assert not verify(tmp_path / "audit", key=audit.key, gateway="gw-1", anchors=anchors).intact


@pytest.mark.parametrize("address", ["localhost", "host:", ":514", "host:port", ""])
def test_an_address_of_no_syslog_is_refused(address: str) -> None:
    with pytest.raises(ConfigInvalid):
        Syslog(address)
