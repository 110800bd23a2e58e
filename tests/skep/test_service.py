"""`skep service`: the unit is one that systemd takes, and closes what the runtime does not need."""

import shutil
import subprocess
from pathlib import Path

import pytest

from skep.cli import main, service
from skep.cli.systemd import Unit

EXPOSURE_TENTHS = 20
"""Of `systemd-analyze security`, whose scale ends at 10."""

needs_analysis = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def _unit(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "skep.service"
    file.write_text(text)
    return file


def _shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["service", "show", *arguments]) == 0
    return capsys.readouterr().out


@needs_analysis
@pytest.mark.parametrize("arguments", [(), ("--home", "/srv/data of mine", "--as", "site")])
def test_unit_of_the_machine_is_valid_and_exposes_little(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = _unit(tmp_path, _shown(capsys, *arguments))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_TENTHS}", unit],
        capture_output=True,
        text=True,
    )
    assert judged.returncode == 0, judged.stdout


@needs_analysis
def test_unit_of_a_login_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = _unit(tmp_path, _shown(capsys, "--user", "--home", str(tmp_path)))
    verified = subprocess.run(["systemd-analyze", "--user", "verify", unit], capture_output=True, text=True)
    assert "skep.service" not in verified.stderr


def test_paths_are_one_word_each_and_stay_what_they_are() -> None:
    text = Unit(name="skep", program=Path("/opt/50%/skep"), home=Path('/srv/a "b" $HOME'), user="site").text
    assert r'ExecStart=/opt/50%%/skep run --home "/srv/a \"b\" $$HOME"' in text


def test_program_below_a_home_is_still_seen() -> None:
    text = Unit(name="skep", program=Path("/home/ann/v/bin/skep"), home=Path("/var/lib/skep")).text
    assert "ProtectHome=read-only" in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("show", "--name", "../evil"), 7, "cannot name a unit"),
        (("show", "--home", "/srv/x"), 2, "say by --as"),
        (("show", "--user", "--as", "ann"), 2, "runs as you"),
        (("uninstall", "--name", "not-there"), 4, "there is no"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["service", *arguments]) == code
    assert said in capsys.readouterr().err


def test_nothing_is_written_where_systemd_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "RUNNING", tmp_path / "no-systemd")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["service", "install", "--user", "--home", str(tmp_path / "home")]) == 6
    assert "systemd does not run here" in capsys.readouterr().err
    assert not (tmp_path / "systemd").exists()


def test_install_writes_enables_and_starts_and_uninstall_takes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a `systemctl` that notes how it was called: no test may change the machine's services."""
    calls = tmp_path / "calls"
    (tmp_path / "bin").mkdir()
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$*" >> {calls}\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(service, "RUNNING", tmp_path)
    unit = tmp_path / "systemd" / "user" / "site.service"

    assert main(["service", "install", "--user", "--name", "site", "--home", str(tmp_path / "home")]) == 0
    assert unit.read_text().startswith("[Unit]\n")
    assert "is enabled and runs" in capsys.readouterr().out

    assert main(["service", "install", "--user", "--name", "site", "--home", str(tmp_path), "--no-start"]) == 0
    assert f"--home {tmp_path}\n" in unit.read_text()
    assert "it runs as it was before, until:  systemctl --user restart site" in capsys.readouterr().out

    assert main(["service", "uninstall", "--user", "--name", "site"]) == 0
    assert not unit.exists()
    assert calls.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable site.service",
        "--user restart site.service",
        "--user daemon-reload",
        "--user enable site.service",
        "--user is-active --quiet site.service",
        "--user disable --now site.service",
        "--user daemon-reload",
    ]


@pytest.mark.parametrize(("account", "code"), [(None, 3), ("site", 0)])
def test_program_that_is_closed_to_others_is_for_its_own_account_only(
    account: str | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As root of a machine whose service manager notes nothing: with its units in a folder of the test's own."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "skep").touch(mode=0o755)
    (tmp_path / "systemctl").write_text("#!/bin/sh\n")
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(service, "RUNNING", tmp_path)
    monkeypatch.setattr(service, "MACHINE_UNITS", tmp_path / "units")
    monkeypatch.setattr(service, "_program", lambda: closed / "skep")
    monkeypatch.setattr(service, "_must_be_root", lambda: None)

    arguments = [] if account is None else ["--home", str(tmp_path / "home"), "--as", account]
    assert main(["service", "install", *arguments]) == code
    assert (tmp_path / "units" / "skep.service").exists() == (code == 0)
    assert ("is closed to others" in capsys.readouterr().err) == (code == 3)


def test_what_systemd_says_of_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "systemctl").write_text("#!/bin/sh\necho 'the bus is gone' >&2\nexit 1\n")
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(service, "RUNNING", tmp_path)
    assert main(["service", "install", "--user", "--home", str(tmp_path / "home")]) == 6
    assert "the bus is gone" in capsys.readouterr().err
