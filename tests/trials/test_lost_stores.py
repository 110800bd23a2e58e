"""Every page kind of every store damaged, and every log cut at each of its frames: what a start then holds is what was
there, or the store is named, or the start is refused. No start ends by a fault of ours.

A bit that flips within a number or a text of a row is not noticed in `twin.db` and in hot history: SQLite has no
checksums. Such rows are counted and printed; a row that is gone must have been said.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.inventory import ACCOUNTS, TWIN, read_inventory, read_notes
from tests.support import PUMP, skep
from tests.trials import damages
from tests.trials.process import RuntimeProcess, furnished, runtime_process
from things.errors import SkepError, StorageDamaged
from things.records import HistoryQuery, LedgerQuery

pytestmark = [pytest.mark.anyio, pytest.mark.trial]

THINGS = 40
EVENTS = 2_000
PEOPLE = 60
SEEDS = 6
HELPERS = ("mqtt-sessions.db", "node.db")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def _thing(number: int) -> str:
    return f"dtw:works:pump-{number}"


@pytest.fixture(scope="module")
async def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Homes as a real process left them: `clean`, `killed`."""
    folder = tmp_path_factory.mktemp("left")
    home = folder / "clean"
    people = {f"person-{number}": "operator" for number in range(PEOPLE)}
    # Descriptions of some go over several pages.
    things = {
        _thing(number): {**PUMP, "description": "x" * (9_000 if number % 10 == 0 else 10)} for number in range(THINGS)
    }
    made = await furnished(home, {"works": "agent", **people}, things)
    async with runtime_process(home) as process:
        async with process.client(made["works"]) as agent:
            for begin in range(0, EVENTS, 500):
                (await agent.post("/agent/batch", json=_batch(begin, 500))).raise_for_status()
            (await agent.post("/agent/things/pump-1/properties", json={"flow": 7})).raise_for_status()
        async with process.client(made["person-1"]) as consumer:
            for number in range(60):
                path = f"/things/{_thing(number % THINGS)}/actions/setSpeed"
                (await consumer.post(path, json=number % 10)).raise_for_status()
        await _noted(process)
        damages.killed_copy(home, folder / "killed")
        assert (await process.terminate())[0] == 0
    return folder


def _batch(begin: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "v": 1,
            "operation": "publish_event",
            "thingID": _thing(number % THINGS),
            "name": "alarm",
            "data": "y" * (6_000 if number % 400 == 0 else 20),
        }
        for number in range(begin, begin + count)
    ]


async def _noted(process: RuntimeProcess) -> None:
    """Return when the inventory has all of it."""
    with anyio.fail_after(10):
        while True:
            inventory = read_inventory(process.home)
            assert inventory is not None
            last = inventory.stores.get("history/row-ids", {}).get("last", 0)
            if last > EVENTS and inventory.stores[TWIN]["seq"] >= 60:
                return
            await anyio.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Held:
    """All that a start has of what was there, by store."""

    accounts: dict[str, Any]
    twin: dict[str, Any]
    history: dict[int, Any]
    named: frozenset[str]

    def lost(self, whole: "Held") -> set[str]:
        """Stores of which something is gone or was added."""
        found = set()
        for store in ("accounts", "twin", "history"):
            if getattr(self, store).keys() != getattr(whole, store).keys():
                found.add(store)
        return found

    def altered(self, whole: "Held") -> Counter[str]:
        """How many rows say something else, by store."""
        found = Counter[str]()
        for store in ("accounts", "twin", "history"):
            mine, theirs = getattr(self, store), getattr(whole, store)
            found[store] = sum(1 for key in mine.keys() & theirs.keys() if mine[key] != theirs[key])
        return +found


async def _held(home: Path) -> Held:
    async with skep(home) as running:
        stores = running.running.stores
        register, twin = stores.authenticator.register, stores.twin
        twins: dict[str, Any] = {}
        for thing_id in twin.directory.ids():
            entry = twin.directory.get(thing_id)
            assert entry is not None
            if thing_id.startswith("dtw:works:"):
                twins[thing_id] = entry.td.text
                for (kind, name), value in twin.values.of_thing(thing_id).items():
                    twins[f"{thing_id} {kind} {name}"] = value.value
        for row in await twin.ledger.query(LedgerQuery(limit=1_000)):
            twins[row.request_id] = (row.thing_id, row.name, row.input, row.caller, row.state)
        rows = await twin.history.read(HistoryQuery(after_row=0, limit=10_000))
        return Held(
            accounts={**register.accounts, **{f"token {key}": one for key, one in register.credentials.items()}},
            twin=twins,
            history={row.row_id: (row.thing_id, row.kind, row.name, row.created, row.value) for row in rows},
            named=frozenset(note.store.partition(".")[0].partition("/")[0] for note in read_notes(home)),
        )


def _cases(left: Path, store: str) -> Iterator[tuple[str, str, damages.Damage]]:
    """(how the home was left, what is done, how)"""
    for end in ("clean", "killed"):
        path = left / end / store
        for name in ("missing", "empty", "zeros", "truncated", "foreign"):
            yield end, name, getattr(damages, name)
        for kind in sorted(damages.pages(path)):
            for seed in range(SEEDS):
                yield end, f"{kind} flipped {seed}", damages.page_flipped(kind, seed)
        if end == "killed":
            for frame in range(damages.frames(path)):
                yield end, f"log cut at {frame}", damages.log_cut(frame)


@pytest.mark.parametrize("store", [ACCOUNTS, TWIN, "history", *HELPERS])
async def test_nothing_of_a_store_goes_in_silence(left: Path, tmp_path: Path, store: str) -> None:
    home = tmp_path / "home"
    shutil.copytree(left / "clean", home)
    whole = await _held(home)
    assert not whole.named
    file = f"history/{next((left / 'clean' / 'history').glob('*.db')).name}" if store == "history" else store
    ends, silent = Counter[str](), list[str]()

    for end, name, damage in _cases(left, file):
        shutil.rmtree(home)
        shutil.copytree(left / end, home)
        damage(home / file)
        what = f"{store}, {end}, {name}"
        try:
            held = await _held(home)
        except StorageDamaged as error:
            is_named = store in (ACCOUNTS, TWIN) and store.partition(".")[0] in error.detail
            ends["refused" if is_named else f"refused: {error.detail}"] += 1
            silent += [] if is_named else [f"{what}: {error.detail}"]
            continue
        except SkepError as error:
            raise AssertionError(what) from error
        lost, altered = held.lost(whole), held.altered(whole)
        if store == "history" and "history" in lost:
            lost.discard("twin")  # the latest values that were in those rows
        if lost - held.named:
            silent.append(f"{what}: {sorted(lost)}")
        elif lost:
            ends["named"] += 1
        elif altered:
            ends["altered, not noticed"] += 1
            if store == ACCOUNTS:
                silent.append(f"{what}: accounts say something else")
        else:
            ends["named, whole" if held.named else "whole"] += 1

    print(store, dict(ends))
    assert not silent, "\n".join(silent)
