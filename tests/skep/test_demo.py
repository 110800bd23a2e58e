"""The demo checks itself: its verdict is an exit code and one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skep.cli import main
from skep.cli.journey import Journey, Step, StepFailed


@pytest.mark.spark
def test_whole_journey_succeeds_on_a_fresh_machine() -> None:
    done = subprocess.run([sys.executable, "-m", "skep", "demo", "--once"], capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("demo: 10 of 10 steps ok in ")
    assert "dtw:weather:seattle" in done.stdout


# What is None in sys.modules is not found.
WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(("pyspark", "vega_datasets")))
"""


def test_base_installation_walks_what_it_can_and_names_what_it_leaves_out_first(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_EXTRAS)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "skep", "demo", "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": paths})

    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "– left out: replay a real recording, for want of vega_datasets",
        "– left out: roll up with Spark, for want of pyspark",
        "  all of it: pip install 'skep[demo]'",
    ]
    assert lines[-1].startswith("demo: 8 of 8 steps ok in ")
    assert lines[-1].endswith("; 2 left out")


def test_failed_step_is_named_and_ends_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def well() -> str:
        return "fine"

    async def badly() -> str:
        raise StepFailed("the pump answered 12")

    async def never() -> str:
        pytest.fail("went on")

    steps = [Step("one", well), Step("two", badly), Step("three", never)]
    monkeypatch.setattr(Journey, "steps", lambda self: steps)

    code = main(["demo", "--once"])

    said = capsys.readouterr().out
    assert code == 1
    assert "step-failed: the pump answered 12" in said
    assert said.splitlines()[-1] == "demo: failed at step 2 of 3, two"


def test_demo_does_not_touch_a_folder_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("")

    assert main(["demo", "--once", "--home", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
