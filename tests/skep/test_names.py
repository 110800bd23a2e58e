"""What `skep` offers to programs, and what may keep it from being imported."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import skep
from things import errors

ROOT = Path(__file__).parent.parent.parent
SDK = (ROOT / "docs" / "sdk.md").read_text("utf-8")


def test_every_public_name_can_be_imported_and_is_documented() -> None:
    section = SDK.partition("## Names")[2].partition("\n## ")[0]
    documented = {name for line in re.findall(r"^\|.*", section, re.M) for name in re.findall(r"`(\w+)`", line)}

    assert {name for name in skep.__all__ if getattr(skep, name, None) is None} == set()
    assert documented == set(skep.__all__)


def test_checkers_and_programs_see_the_same_names() -> None:
    source = ast.parse(Path(skep.__file__).read_text("utf-8"))
    checked = {
        alias.name: str(node.module)
        for block in source.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert set(checked) == set(skep.__all__) == set(dir(skep))
    for name, module in checked.items():
        assert getattr(skep, name) is getattr(sys.modules[module], name)


def test_every_error_comes_from_skep() -> None:
    found = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}

    assert found <= set(skep.__all__)


def test_importing_skep_brings_no_library_with_it() -> None:
    heavy = "{'paho', 'httpx2', 'pandas', 'pyarrow', 'pydantic', 'websockets', 'uvicorn'}"
    program = f"import sys, skep; print(sorted({heavy} & {{name.partition('.')[0] for name in sys.modules}}))"

    assert run(ROOT, "-c", program).stdout == "[]\n"


@pytest.mark.parametrize("name", ["things", "spark", "runtime", "gateway"])
@pytest.mark.parametrize("kind", ["package", "module"])
def test_package_of_the_same_name_is_named_with_its_place_and_the_way_out(tmp_path: Path, name: str, kind: str) -> None:
    hiding = tmp_path / name if kind == "package" else tmp_path / f"{name}.py"
    if kind == "package":
        hiding.mkdir()
    (hiding / "__init__.py" if kind == "package" else hiding).touch()
    (tmp_path / "agent.py").write_text("import skep\n")

    ended = run(tmp_path, "agent.py")
    passed_over = run(tmp_path, "-P", "agent.py")

    said = ended.stderr.strip().splitlines()[-1]
    assert ended.returncode == 1
    assert said.startswith(f"ImportError: skep needs its own package '{name}' from {ROOT / name}")
    assert f"finds {hiding} first: rename or move that" in said
    assert passed_over.returncode == 0, passed_over.stderr


def test_package_of_the_same_name_that_is_imported_already_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "things.py").touch()

    ended = run(tmp_path, "-c", "import sys; sys.path.insert(0, '.'); import things, skep")

    assert "skep needs its own package 'things'" in ended.stderr


def test_folder_without_modules_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "things").mkdir()
    (tmp_path / "agent.py").write_text("import skep\nfrom things import errors\n")

    assert run(tmp_path, "agent.py").returncode == 0


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    # PYTHONPATH comes after a script's own folder, as an installation does.
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
