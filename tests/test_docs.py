"""The documentation says what is there: commands, options, configuration keys; its examples run."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from gateway.config import keys
from skep.cli import cli
from tests.skep.runtimes import process

ROOT = Path(__file__).parent.parent
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
PATIENCE_S = 240.0


def test_every_command_is_documented_and_explains_itself() -> None:
    commands = dict(_commands(cli, "skep", click.Context(cli)))

    missing = [name for name in commands if f"`{name}" not in OPERATIONS]
    silent = [name for name, command in commands.items() if not command.help]

    assert not missing
    assert not silent


def test_tests_that_a_promise_names_are_there() -> None:
    promises = (ROOT / "SECURITY.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+)`", promises))
    tests = "\n".join(file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py"))

    assert named
    assert not [name for name in named if f"def {name}(" not in tests]
    assert not [path for path in re.findall(r"`(tests/[^`]+)`", promises) if not (ROOT / path).exists()]


def test_every_configuration_key_is_documented() -> None:
    missing = [key for key, _ in keys() if f"| `{key}` |" not in OPERATIONS]
    unknown = set(
        re.findall(r"^\| `([a-z_.0-9]+)` \|", OPERATIONS.partition("## Configuration")[2].partition("## When")[0], re.M)
    )
    unknown -= {key for key, _ in keys()}

    assert not missing
    assert not unknown


def test_exit_codes_are_documented_as_they_are() -> None:
    from skep.cli import failures

    table = "\n".join(line for line in (failures.__doc__ or "").splitlines() if re.match(r"\| \d", line))

    for row in table.splitlines():
        assert row.rstrip(" |") in OPERATIONS, row


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.name
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8"))

    assert not [link for link in links if not (page.parent / link).exists()]


def test_examples_in_the_readme_are_the_files_that_are_run() -> None:
    for name in ("agent", "consumer", "hyperty"):
        code = (ROOT / "docs" / "examples" / f"{name}.py").read_text("utf-8")
        assert f"```python\n{code.rstrip()}\n```" in README


def test_example_of_a_test_is_the_file_that_is_run() -> None:
    code = (ROOT / "docs" / "examples" / "test_agent.py").read_text("utf-8")

    assert f"```python\n{code.rstrip()}\n```" in (ROOT / "docs" / "sdk.md").read_text("utf-8")


def test_examples_of_the_sdk_run(tmp_path: Path) -> None:
    with process(tmp_path / "home") as ready:
        home = ("--home", str(tmp_path / "home"))
        tokens = {
            name: _token("client", "add", name, "--type", kind, *role, "--json", *home)
            for name, kind, role in (
                ("greenhouse", "agent", ()),
                ("ann", "consumer", ("--role", "operator")),
            )
        }
        shared = {**ENVIRONMENT, "SKEP_CA": ready["ca"], "SKEP_URL": ready["https"], "SKEP_MQTT": ready["mqtts"]}
        examples = ROOT / "docs" / "examples"
        with subprocess.Popen(
            [sys.executable, str(examples / "agent.py")], env={**shared, "SKEP_TOKEN": tokens["greenhouse"]}
        ) as agent:
            try:
                _until(lambda: "41.5" in _run("things", "show", "dtw:greenhouse:bed-1", *home, check=False))
                said, reported = (
                    subprocess.run(
                        [sys.executable, str(examples / f"{program}.py")],
                        env={**shared, "SKEP_TOKEN": tokens[name]},
                        capture_output=True,
                        text=True,
                        timeout=PATIENCE_S,
                    )
                    for program, name in (("consumer", "ann"), ("hyperty", "greenhouse"))
                )
            finally:
                agent.kill()

    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert lines[0] == "moisture 41.5"
    assert "completed 50.0 5" in lines
    assert lines[-1].startswith("dtw:greenhouse:bed-1 moisture")
    assert reported.stdout == "occupied True moisture 65\n", reported.stderr


@pytest.mark.spark
def test_tour_in_the_readme_passes_as_it_is_pasted(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir(mode=0o700)
    # The tour's words with any free ports: somebody else may use the usual ones on this machine.
    (tmp_path / "site" / "skep.toml").write_text(
        '[http]\nhttp = "127.0.0.1:0"\nhttps = "127.0.0.1:0"\n[mqtt]\nmqtt = "127.0.0.1:0"\nmqtts = "127.0.0.1:0"\n'
    )
    blocks = re.findall(r"```sh tour\n(.*?)```", README, re.S)
    assert len(blocks) == 2
    # Job control as at a prompt; the first line that fails ends the tour, and its jobs with it.
    script = "set -mex\ntrap 'kill -9 $(jobs -p)' EXIT\n" + "".join(blocks)

    with (tmp_path / "said").open("w") as said:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**os.environ, **ENVIRONMENT},
            stdout=said,
            stderr=said,
            timeout=PATIENCE_S,
        )

    text = (tmp_path / "said").read_text("utf-8")
    assert done.returncode == 0, text
    for word in ("dtw:simulated:pump-1", "completed", "sealed", "pending", "token"):
        assert word in text, word


def _run(*arguments: str, check: bool = True) -> str:
    return subprocess.run(
        [sys.executable, "-m", "skep", *arguments], capture_output=True, text=True, timeout=60, check=check
    ).stdout


def _token(*arguments: str) -> str:
    import json

    return str(json.loads(_run(*arguments))["token"])


def _until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until, "it did not come about"


def _commands(group: click.Group, path: str, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}", context)
        else:
            yield f"{path} {name}", command
