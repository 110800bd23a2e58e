"""`skep completion`: what shells are given, where it is put, and what they are answered at Tab."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from skep.cli import COMMANDS, main
from tests.skep.commands import Skep


def _asked(words: str, shell: str = "bash") -> list[str]:
    """What the shell is answered when Tab is pressed after these words."""
    found = subprocess.run(
        [sys.executable, "-m", "skep"],
        env={
            "PYTHONPATH": ":".join(sys.path),
            "PATH": "/usr/bin:/bin",
            "_SKEP_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": words.rpartition(" ")[2] if shell == "fish" else str(words.count(" ")),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.stderr == ""
    return [line for line in found.stdout.splitlines() if line]


def test_every_command_is_offered_with_nothing_imported() -> None:
    program = (
        "import sys; from click.shell_completion import BashComplete; from skep.cli import cli;"
        "found = BashComplete(cli, {}, 'skep', '_SKEP_COMPLETE').get_completions([], '');"
        "print(*(one.value for one in found));"
        "print(*(name for name in sys.modules if name.startswith('skep.cli.')))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    offered, imported = printed.stdout.splitlines()
    assert offered.split() == [*COMMANDS]
    assert imported == ""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("skep his", {"plain,history"}),
        ("skep history re", {"plain,restamp"}),
        ("skep requests ls --state pen", {"plain,pending"}),
        ("skep requests ls --lim", {"plain,--limit"}),
        ("skep authz explain ann inv", {"plain,invoke", "plain,invoke_action"}),
        ("skep nothing at", set()),
    ],
)
def test_bash_is_answered(words: str, offered: set[str]) -> None:
    assert set(_asked(words)) == offered


def test_zsh_and_fish_are_answered_with_summaries() -> None:
    assert "The log of security acts." in _asked("skep aud", "zsh")
    assert _asked("skep aud", "fish") == ["plain,audit\tThe log of security acts."]


@pytest.mark.parametrize(
    ("shell", "place", "said"),
    [
        ("bash", "data/bash-completion/completions/skep", "bash-completion"),
        ("zsh", ".zfunc/_skep", "fpath+=("),
        ("fish", "config/fish/completions/skep.fish", "new shells"),
    ],
)
def test_it_is_installed_for_the_shell_in_use(
    skep: Skep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, place: str, said: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("BASH_COMPLETION_USER_DIR", raising=False)

    printed = skep("completion", shell)
    installed = skep("completion", "--install")

    assert (printed.code, installed.code) == (0, 0)
    assert f"_SKEP_COMPLETE={shell}_complete" in printed.out
    assert (tmp_path / place).read_text("utf-8") == printed.out
    assert str(tmp_path / place) in installed.out
    assert said in installed.out


def test_an_unknown_shell_is_asked_for(skep: Skep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/csh")

    said = skep("completion")

    assert (said.code, said.err.splitlines()[0]) == (2, "usage: say for which shell: bash, zsh, fish")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_by_what_is_installed(skep: Skep, tmp_path: Path) -> None:
    script = tmp_path / "skep.bash"
    script.write_text(skep("completion", "bash").out, "utf-8")
    (tmp_path / "skep").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m skep "$@"\n')
    (tmp_path / "skep").chmod(0o755)
    pressed = f'. {script}; COMP_WORDS=(skep backup ver); COMP_CWORD=2; _skep_completion skep; echo "${{COMPREPLY[@]}}"'

    found = subprocess.run(
        ["bash", "-c", pressed],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (found.stdout, found.stderr) == ("verify\n", "")


def test_unknown_commands_are_still_refused_on_the_line() -> None:
    assert main(["histroy"]) == 2
