"""`skep repair` as it is typed: on a folder that a runtime has used, and while one runs."""

import json
from pathlib import Path

import pytest

from skep.cli import main
from tests.skep.runtimes import process


def test_a_folder_that_was_damaged_starts_again_once_it_was_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    with process(home):
        assert main(["client", "add", "works", "--type", "agent", "--home", str(home)]) == 0
        assert main(["repair", "--home", str(home)]) == 9
    assert main(["repair", "--home", str(home)]) == 0
    assert "accounts.db                  whole" in capsys.readouterr().out
    content = bytearray((home / "accounts.db").read_bytes())
    for at in range(100, 400):  # names and places of tables
        content[at] ^= 0xFF
    (home / "accounts.db").write_bytes(content)
    assert main(["client", "ls", "--home", str(home)]) == 8
    assert "skep repair" in capsys.readouterr().err

    assert main(["repair", "accounts.db", "--home", str(home), "--json"]) == 0

    (told,) = json.loads(capsys.readouterr().out)
    assert told["repaired"]
    assert (home / "accounts.db.set-aside").read_bytes() == content
    assert main(["client", "ls", "--home", str(home)]) == 0
    assert "works" in capsys.readouterr().out
    assert main(["stores", "ls", "--home", str(home)]) == 1  # until somebody has seen it
    assert "repaired" in capsys.readouterr().out
    assert any("repair accounts.db" in path.read_text() for path in (home / "audit").rglob("*.jsonl"))


def test_a_store_of_which_nothing_is_left_is_not_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    with process(home):
        pass
    (home / "twin.db").unlink()

    assert main(["repair", "--home", str(home)]) == 1

    assert "twin.db                      missing: nothing can be read of it" in capsys.readouterr().out
    assert main(["repair", "--home", str(tmp_path / "nothing")]) == 6
