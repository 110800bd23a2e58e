"""Every store of a home, lost or damaged in every way, after a clean end and after a kill: nothing goes in silence."""

import shutil
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from gateway.inventory import FILE, read_inventory, read_notes
from gateway.stocktaking import ask_for, clear_notes
from skep.consumer import Consumer
from tests.metrics import read
from tests.support import PUMP, Account, skep
from tests.trials import damages
from tests.trials.process import RuntimeProcess, furnished, runtime_process
from things.errors import NotFound, StorageDamaged
from things.records import HistoryQuery

pytestmark = pytest.mark.anyio

THING = "dtw:works:pump-1"
EVENTS = 40
ACCOUNTS = {"works": "agent", "mia": "operator"}


class Left:
    """Homes as a real process left them: `clean`, `killed`."""

    def __init__(self, folder: Path, works: Account) -> None:
        self.folder = folder
        self.works = works


async def _used(process: RuntimeProcess, works: Account, mia: Account) -> None:
    async with process.client(works) as agent:
        for number in range(EVENTS):
            (await agent.post("/agent/things/pump-1/events/alarm", json=str(number))).raise_for_status()
        (await agent.post("/agent/things/pump-1/properties", json={"flow": 7})).raise_for_status()
    async with process.client(mia) as consumer:
        for number in range(3):
            (await consumer.post(f"/things/{THING}/actions/setSpeed", json=number)).raise_for_status()
    async with Consumer(socket=process.home / "control.sock") as admin:
        await admin.call("dtw:authn:admin", "addClient", {"clientID": "guest", "type": "consumer", "role": "viewer"})
    # What was committed is in the inventory within a second of it.
    with anyio.fail_after(10):
        while _noted(process.home) < (EVENTS + 1, 3):  # noqa: ASYNC110 - another process
            await anyio.sleep(0.02)


def _noted(home: Path) -> tuple[int, int]:
    inventory = read_inventory(home)
    assert inventory is not None
    return inventory.stores.get("history/row-ids", {}).get("last", 0), inventory.stores["twin.db"]["seq"]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    folder = tmp_path_factory.mktemp("left")
    home = folder / "clean"
    made = await furnished(home, ACCOUNTS, {THING: PUMP})
    async with runtime_process(home) as process:
        await _used(process, made["works"], made["mia"])
        damages.killed_copy(home, folder / "killed")
        assert (await process.terminate())[0] == 0
    return Left(folder, made["works"])


DAMAGES: dict[str, damages.Damage] = {
    "missing": damages.missing,
    "empty": damages.empty,
    "zeros": damages.zeros,
    "truncated": damages.truncated,
    "foreign": damages.foreign,
    **{f"schema flipped {seed}": damages.flipped(seed, 100, 4096) for seed in range(4)},
    # The last three once met a fault: a schema that is no text, a renamed column, a counter without a row.
    **{f"flipped {seed}": damages.flipped(seed) for seed in (0, 1, 2, 3, 17, 31, 170)},
}
LOG_DAMAGES = {"log cut": damages.log_cut(), "log flipped": damages.log_flipped, "log gone": damages.log_gone}
CASES = [
    *(("clean", name, damage) for name, damage in DAMAGES.items()),
    *(("killed", name, DAMAGES[name]) for name in ("missing", "empty", "truncated", "foreign", "flipped 1")),
    *(("killed", name, damage) for name, damage in LOG_DAMAGES.items()),
]


def _copied(left: Left, end: str, to: Path) -> Path:
    return Path(shutil.copytree(left.folder / end, to / "home"))


async def _held(home: Path, works: Account) -> dict[str, Any]:
    """What a start on this home has of what was in it, and what it warns of."""
    async with skep(home) as running:
        stores = running.running.stores
        rows = await stores.twin.history.read(HistoryQuery(after_row=0, limit=1_000))
        async with httpx.AsyncClient(base_url=running.http) as client:
            ready = (await client.get("/readyz")).json()
            metrics = read((await client.get("/metrics")).text)
            bearer = {"authorization": f"Bearer {works.token}"}
            known = (await client.get(f"/things/{THING}", headers=bearer)).status_code
        notes = read_notes(home)
        warned = [text for name, text in ready.get("warnings", {}).items() if name.startswith("store-")]
        assert len(warned) == len(notes)
        assert metrics["skep_stores_set_aside"] == len(notes)
        return {
            "rows": len(rows),
            "seq": stores.twin.ledger.last_seq,
            "accounts": sorted(stores.authenticator.register.accounts),
            "known": known,
            "named": {note.store.partition(".")[0].partition("/")[0] for note in notes},
        }


WHOLE = {"rows": EVENTS + 1, "seq": 3, "accounts": ["guest", "mia", "works"], "known": 200, "named": set()}


@pytest.mark.parametrize("end", ["clean", "killed"])
async def test_a_whole_home_is_found_whole(left: Left, tmp_path: Path, end: str) -> None:
    home = _copied(left, end, tmp_path)

    assert await _held(home, left.works) == WHOLE


@pytest.mark.parametrize(("end", "name", "damage"), CASES, ids=lambda value: value if isinstance(value, str) else "")
async def test_accounts_that_are_not_what_they_were_stop_the_start_and_make_no_claim_code(
    left: Left, tmp_path: Path, end: str, name: str, damage: damages.Damage
) -> None:
    home = _copied(left, end, tmp_path)
    (home / "claim").unlink(missing_ok=True)
    damage(home / "accounts.db")

    for _ in range(2):  # looking once must not make the second start believe it
        try:
            held = await _held(home, left.works)
        except StorageDamaged as refusal:
            said = refusal.detail
        else:
            # Twelve bits may hit what nobody reads; then nothing may be missing.
            assert name.startswith("flipped")
            assert held["accounts"] == WHOLE["accounts"]
            return
        assert "accounts" in said
        assert not (home / "claim").exists()


@pytest.mark.parametrize(("end", "name", "damage"), CASES, ids=lambda value: value if isinstance(value, str) else "")
async def test_a_twin_that_is_not_what_it_was_is_refused_or_named(
    left: Left, tmp_path: Path, end: str, name: str, damage: damages.Damage
) -> None:
    home = _copied(left, end, tmp_path)
    damage(home / "twin.db")

    try:
        held = await _held(home, left.works)
    except StorageDamaged as refusal:
        said = refusal.detail
    else:
        assert held["accounts"] == WHOLE["accounts"]
        if name.startswith("log"):
            assert held["named"] == {"twin"}
            assert held["seq"] > 3
        else:
            assert name.startswith(("flipped", "schema"))
            assert (held["rows"], held["seq"], held["known"]) == (EVENTS + 1, 3, 200)
        return
    assert "twin.db" in said
    assert not name.startswith("log")


@pytest.mark.parametrize(("end", "name", "damage"), CASES, ids=lambda value: value if isinstance(value, str) else "")
async def test_history_that_is_not_what_it_was_is_named_and_the_rest_goes_on(
    left: Left, tmp_path: Path, end: str, name: str, damage: damages.Damage
) -> None:
    home = _copied(left, end, tmp_path)
    (file,) = (home / "history").glob("*.db")
    damage(file)

    held = await _held(home, left.works)

    assert {**held, "rows": 0, "named": 0} == {**WHOLE, "rows": 0, "named": 0}
    if held["rows"] != EVENTS + 1 or not name.startswith(("flipped", "schema")):
        assert held["named"] == {"history"}
    async with skep(home) as again:
        assert again.running.stores.twin.history.last_row >= EVENTS + 1


async def test_what_was_refused_starts_when_it_is_asked_for(left: Left, tmp_path: Path) -> None:
    home = _copied(left, "killed", tmp_path)
    damages.log_flipped(home / "accounts.db")
    with pytest.raises(StorageDamaged, match="skep stores accept"):
        await _held(home, left.works)

    ask_for(home, "accounts.db", anew=False)

    async with skep(home) as running:
        authenticator = running.running.stores.authenticator
        await authenticator.audit.flush()
        assert any("accept accounts.db" in path.read_text() for path in (home / "audit").rglob("*.jsonl"))
    damages.missing(home / "accounts.db")
    with pytest.raises(StorageDamaged, match="missing"):
        await _held(home, left.works)
    with pytest.raises(NotFound):
        ask_for(home, "accounts.db", anew=False)

    ask_for(home, "accounts.db", anew=True)

    async with skep(home) as running:
        assert running.running.stores.authenticator.claim_code.code is not None
    async with skep(home):  # and now it is the store that is expected
        pass


async def test_a_home_without_an_inventory_gets_one_but_not_beside_accounts_that_are_gone(
    left: Left, tmp_path: Path
) -> None:
    home = _copied(left, "clean", tmp_path)
    (home / FILE).unlink()
    assert await _held(home, left.works) == WHOLE
    assert _noted(home) == (EVENTS + 1, 3)

    for store in ("accounts.db", "twin.db"):
        shutil.rmtree(home)
        _copied(left, "clean", tmp_path)
        (home / FILE).unlink()
        damages.missing(home / store)
        with pytest.raises(StorageDamaged, match=f"{store} is missing"):
            await _held(home, left.works)


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\x00" * 400])
async def test_a_lost_or_damaged_inventory_is_made_anew_from_what_is_there(
    left: Left, tmp_path: Path, content: bytes | None
) -> None:
    home = _copied(left, "clean", tmp_path)
    (home / FILE).unlink() if content is None else (home / FILE).write_bytes(content)

    held = await _held(home, left.works)

    assert held == {**WHOLE, "named": set() if content is None else {"inventory"}}
    assert _noted(home) == (EVENTS + 1, 3)


@pytest.mark.parametrize("row_ids", [None, "x"], ids=["missing", "damaged"])
async def test_lost_row_ids_gateway_and_keys_are_named_and_made_good(
    left: Left, tmp_path: Path, row_ids: str | None
) -> None:
    home = _copied(left, "clean", tmp_path)
    gateway = (home / "gateway.json").read_bytes()
    (home / "gateway.json").unlink()
    (home / "history" / "row-ids").unlink()
    if row_ids is not None:
        (home / "history" / "row-ids").write_text(row_ids)
    for key in (home / "keys").glob("token-*.pem"):
        key.unlink()

    held = await _held(home, left.works)

    assert held["named"] == {"gateway", "history", "keys"}
    assert (home / "gateway.json").read_bytes() == gateway
    assert clear_notes(home, "keys")
    clear_notes(home)
    async with skep(home) as again:
        assert again.running.stores.twin.history.last_row > 1_000_000
        async with httpx.AsyncClient(base_url=again.http) as client:
            assert "warnings" not in (await client.get("/readyz")).json()


@pytest.mark.parametrize("damage", ["missing", "empty", "zeros", "truncated", "schema flipped 0", "flipped 0"])
@pytest.mark.parametrize("name", ["mqtt-sessions.db", "node.db", "clock.json"])
async def test_what_can_be_done_without_never_stops_a_start(left: Left, tmp_path: Path, name: str, damage: str) -> None:
    home = _copied(left, "clean", tmp_path)
    DAMAGES[damage](home / name)

    held = await _held(home, left.works)

    assert {**held, "named": set()} == WHOLE
    assert held["named"] <= {name.partition(".")[0]}
    if name.endswith(".db") or damage in ("empty", "zeros"):
        assert held["named"] or damage.endswith("flipped 0")


@pytest.mark.parametrize("content", [None, b"", b"\xff\x00noise{"])
async def test_what_can_be_made_again_never_stops_a_start(left: Left, tmp_path: Path, content: bytes | None) -> None:
    home = _copied(left, "clean", tmp_path)
    (home / "history" / "dropped").write_text("5\n")
    gateway = (home / "gateway.json").read_bytes()
    for name in ("certs/server.key", "certs/server.pem", "gateway.json", "history/dropped", "clock.json"):
        (home / name).unlink() if content is None else (home / name).write_bytes(content)

    held = await _held(home, left.works)

    assert {**held, "named": set()} == WHOLE
    assert held["named"] == ({"gateway"} if content is None else {"gateway", "history", "clock"})
    assert (home / "gateway.json").read_bytes() == gateway
    async with skep(home, tls=True) as again, httpx.AsyncClient(base_url=again.https, verify=str(again.ca)) as client:
        assert (await client.get("/livez")).status_code == 200


async def test_a_missing_certificate_of_the_authority_makes_no_other_in_silence(left: Left, tmp_path: Path) -> None:
    home = _copied(left, "clean", tmp_path)
    (home / "certs" / "ca.pem").unlink()
    with pytest.raises(StorageDamaged, match=r"ca\.pem is missing"):
        await _held(home, left.works)

    (home / "certs").rename(home / "certs-before")

    assert (await _held(home, left.works))["named"] == {"certs"}


async def test_a_missing_key_of_the_authority_is_named(left: Left, tmp_path: Path) -> None:
    home = _copied(left, "clean", tmp_path)
    (home / "certs" / "ca.key").unlink()

    with pytest.raises(StorageDamaged, match=r"ca\.key is missing"):
        await _held(home, left.works)
