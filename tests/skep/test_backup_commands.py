"""`skep backup` and `skep restore` as they are typed: what they print, and how they refuse."""

import json
from pathlib import Path

import pytest

from skep.cli import main
from tests.skep.runtimes import process


def test_backup_of_a_home_is_listed_verified_and_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, to, new = str(tmp_path / "home"), str(tmp_path / "backups"), str(tmp_path / "new")
    with process(tmp_path / "home"):
        assert main(["backup", "create", to, "--home", home, "--keep", "3", "--json"]) == 0  # while it runs
    name = json.loads(capsys.readouterr().out)["name"]
    assert main(["backup", "create", to, "--home", home, "--without-keys"]) == 0  # and while it does not
    assert "every token and certificate ends" in capsys.readouterr().out
    assert main(["backup", "ls", to, "--json"]) == 0
    assert [one["keys"] for one in json.loads(capsys.readouterr().out)] == [True, False]
    assert main(["backup", "ls", to]) == 0
    assert main(["backup", "verify", f"{to}/{name}"]) == 0
    assert "are as they were written" in capsys.readouterr().out
    assert main(["restore", f"{to}/{name}", "--home", new]) == 0
    assert "restored" in capsys.readouterr().out
    assert main(["restore", f"{to}/{name}", "--home", new]) == 5
    assert main(["restore", to, "--home", new, "--replace", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["aside"], told["keys"]) == ("before-restore-1", False)
    assert main(["stores", "ls", "--home", new]) == 0


def test_backup_by_hand_is_in_the_audit_log_and_says_what_is_not_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, to = tmp_path / "home", tmp_path / "site.tar"
    with process(home):
        pass
    (home / "skep.toml").write_text(f'[history]\nlake = "{tmp_path / "lake"}"\n')

    assert main(["backup", "create", str(to), "--home", str(home)]) == 0

    assert f"not in it: lake ({tmp_path / 'lake'})" in capsys.readouterr().out
    told = "".join(path.read_text() for path in sorted((home / "audit").rglob("*.jsonl")))
    assert '"backup"' in told
    assert "site.tar" in told


def test_encrypted_backup_needs_its_passphrase(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, to = str(tmp_path / "home"), str(tmp_path / "site.tar.gz")
    secret = tmp_path / "passphrase"
    secret.write_text("correct horse battery staple\n")
    with process(tmp_path / "home"):
        assert main(["backup", "create", to, "--home", home, "--encrypt"]) == 2
        assert main(["backup", "create", to, "--home", home, "--encrypt", "--passphrase-file", str(secret)]) == 7
        secret.chmod(0o600)
        assert main(["backup", "create", to, "--home", home, "--encrypt", "--passphrase-file", str(secret)]) == 0
    assert main(["backup", "verify", to]) == 3
    monkeypatch.setenv("SKEP_BACKUP_PASSPHRASE", "correct horse battery staple")
    assert main(["backup", "verify", to, "--json"]) == 0
    capsys.readouterr()

    content = bytearray(Path(to).read_bytes())
    content[-1] ^= 1
    Path(to).write_bytes(content)
    assert main(["restore", to, "--home", str(tmp_path / "new")]) == 8
    assert not (tmp_path / "new").exists()


def test_what_is_no_backup_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", "verify", str(tmp_path / "nothing")]) == 4
    assert main(["backup", "ls", str(tmp_path)]) == 4
    assert main(["backup", "create", str(tmp_path / "to"), "--home", str(tmp_path / "nothing")]) == 6
    (tmp_path / "noise.tar").write_bytes(b"noise" * 1000)
    assert main(["restore", str(tmp_path / "noise.tar"), "--home", str(tmp_path / "new")]) == 8
    assert "no whole backup" in capsys.readouterr().err
