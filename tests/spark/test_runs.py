"""Which folders hold a growing table: all batches once, in few folders, none overwritten while it is needed."""

import pytest

from spark.jobs import runs
from spark.jobs.runs import Run


def batches_of(run: Run) -> set[int]:
    size = runs.FANOUT**run.level
    return set(range(run.number * size, (run.number + 1) * size))


@pytest.mark.parametrize("fanout", [2, 3, 16])
def test_every_batch_is_in_one_readable_run_whenever_one_looks(monkeypatch: pytest.MonkeyPatch, fanout: int) -> None:
    monkeypatch.setattr(runs, "FANOUT", fanout)
    folders: dict[str, Run] = {}

    for batch in range(500):
        for run in runs.due(batch):
            sources = run.sources
            assert all(folders[source.folder] == source for source in sources)
            assert set().union(*map(batches_of, sources)) == batches_of(run)
            folders[run.folder] = run
        # Killed here, what was committed before is still whole, and so is what a new attempt folds again.
        needed = [*(runs.after(batch - 1) if batch else ()), *(one for run in runs.due(batch) for one in run.sources)]
        own = Run(0, batch)
        folders[own.folder] = own
        assert all(folders[run.folder] == run for run in needed)
        readable = runs.after(batch)
        assert all(folders[run.folder] == run for run in readable)
        held = [one for run in readable for one in batches_of(run)]
        assert sorted(held) == list(range(batch + 1))

    assert len(folders) <= 2 * fanout * (max(run.level for run in folders.values()) + 1)


def test_a_reader_has_the_time_of_a_whole_fold_before_its_folders_are_used_again() -> None:
    reading = runs.after(1_000)

    written = {run.folder for batch in range(1_001, 1_001 + runs.FANOUT) for run in (*runs.due(batch), Run(0, batch))}

    assert not written & {run.folder for run in reading}
