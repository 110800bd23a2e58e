"""Who may import whom: the folders' layers, read from the source."""

import ast
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("things", "runtime", "bindings", "twin", "authn", "authz", "spark", "skep")

ALLOWED: dict[str, set[str]] = {
    "things": set(),
    "authn": {"things"},
    "authz": {"things"},
    "twin": {"things"},
    "spark": {"things"},
    "runtime": {"things"},
    "bindings": {"things", "runtime.ports"},
    "skep": {"things"},
}
"""Rooms (or single modules of them) beside its own that a room may import."""

EXCEPTIONS: dict[str, set[str]] = {
    # The composition root knows everyone: one module starts, one puts together, two open what is put together.
    "runtime.app": {"things"},
    "runtime.assembly": {"things", "bindings", "twin", "authn", "authz"},
    "runtime.rooms": {"things", "twin", "authn", "authz"},
    "runtime.engines": {"things", "bindings"},
}
COMMANDS_MAY = {"runtime.app", "runtime.config", "runtime.home", "spark.java", "spark.jobs"}
"""What a command may import beyond the SDK; inside functions only, so that `skep --help` stays quick."""

THINGS_MAY = {"pydantic", "pydantic_core", "jsonschema_rs"}


def test_no_room_imports_what_is_above_or_beside_it() -> None:
    broken = [
        f"{module} imports {imported} (line {line})"
        for module, _, imported, line, _ in _imports()
        if _room(imported) in ROOMS and not _may(module, imported)
    ]

    assert not broken, "\n".join(broken)


def test_bindings_do_not_know_each_other() -> None:
    broken = [
        f"{module} imports {imported} (line {line})"
        for module, _, imported, line, _ in _imports()
        if module.startswith("bindings.")
        and imported.startswith("bindings.")
        and module.split(".")[1] != imported.split(".")[1]
    ]

    assert not broken, "\n".join(broken)


def test_things_uses_the_standard_library_pydantic_and_one_schema_validator() -> None:
    broken = [
        f"{module} imports {imported} (line {line})"
        for module, room, imported, line, _ in _imports()
        if room == "things" and _room(imported) not in {"things", *THINGS_MAY, *sys.stdlib_module_names}
    ]

    assert not broken, "\n".join(broken)


def test_commands_import_the_runtime_only_when_they_run() -> None:
    broken = [
        f"{module} imports {imported} at its top (line {line})"
        for module, room, imported, line, lazy in _imports()
        if room == "skep" and _room(imported) in {"runtime", "spark"} and not lazy
    ]

    assert not broken, "\n".join(broken)


def _may(module: str, imported: str) -> bool:
    room = _room(module)
    if _room(imported) == room:
        return True
    allowed = EXCEPTIONS.get(module, ALLOWED[room])
    if module.startswith("skep.cli"):
        allowed = allowed | COMMANDS_MAY
    return any(imported == one or imported.startswith(f"{one}.") for one in allowed)


def _room(module: str) -> str:
    return module.partition(".")[0]


@cache
def _imports() -> Sequence[tuple[str, str, str, int, bool]]:
    """Every import of our rooms: module, its room, what it imports, line, and whether only when a function runs."""
    return list(_found())


def _found() -> Iterator[tuple[str, str, str, int, bool]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            tree = ast.parse(path.read_text("utf-8"))
            at_top = {id(node) for node in ast.walk(tree)} - {
                id(inner)
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                for inner in ast.walk(node)
            }
            for node in ast.walk(tree):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    assert node.level == 0, f"{module} line {node.lineno}: imports are absolute here"
                    # `from bindings import http` names a module too.
                    base = node.module or ""
                    names = [f"{base}.{alias.name}" if base in ROOMS else base for alias in node.names]
                for name in names:
                    if isinstance(node, ast.Import | ast.ImportFrom):
                        yield module, room, name, node.lineno, id(node) not in at_top
