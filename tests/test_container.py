"""The container file holds what an image needs, and nothing it must not have."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONTAINERFILE = (ROOT / "Containerfile").read_text()
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def _instructions(name: str) -> list[str]:
    joined = CONTAINERFILE.replace("\\\n", " ")
    return [line.partition(" ")[2].strip() for line in joined.splitlines() if line.startswith(f"{name} ")]


def test_everything_that_is_installed_is_copied_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.removesuffix("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    copied = {line.split()[0] for line in _instructions("COPY") if not line.startswith("--from")}
    assert copied - {"pyproject.toml"} == packages
    assert {line.removeprefix("!") for line in IGNORED if line.startswith("!")} >= packages
    assert "*" in IGNORED


def test_it_runs_as_nobody_special_and_keeps_everything_in_one_volume() -> None:
    assert _instructions("USER") == ["skep"]
    assert _instructions("VOLUME") == ["/var/lib/skep"]
    assert "SKEP_HOME=/var/lib/skep" in CONTAINERFILE
    assert CONTAINERFILE.index("\nUSER skep") < CONTAINERFILE.index("\nENTRYPOINT")


def test_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (asked,) = re.findall(r"install --no-cache-dir '\.\[([a-z,]+)\]'", CONTAINERFILE)
    assert set(asked.split(",")) <= set(extras)


def test_settings_are_keys_of_the_configuration(tmp_path: Path) -> None:
    from gateway.config import Config

    settings = dict(re.findall(r"(SKEP_[A-Z_]+)=(\S+)", CONTAINERFILE))
    config = Config.load(tmp_path, settings)
    assert (config.http.https, config.mqtt.mqtts) == ("0.0.0.0:8443", "0.0.0.0:8883")
    assert not config.security.insecure


def test_health_is_asked_by_a_command_that_exists() -> None:
    from skep.cli import COMMANDS

    (check,) = _instructions("HEALTHCHECK")
    assert check.endswith('CMD ["skep", "ready"]')
    assert "ready" in COMMANDS
