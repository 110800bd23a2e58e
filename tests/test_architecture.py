"""Who may import whom: the folders' layers, read from the source."""

import ast
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("things", "gateway", "runtime", "bindings", "twin", "authn", "authz", "spark", "skep")

ALLOWED: dict[str, set[str]] = {
    "things": set(),
    "authn": {"things"},
    "authz": {"things"},
    "twin": {"things"},
    "spark": {"things"},
    "runtime": {"things"},
    "bindings": {"things", "runtime.ports"},
    "skep": {"things"},
    # The composition root knows everyone, and only commands know it.
    "gateway": {"things", "runtime", "bindings", "twin", "authn", "authz"},
}
"""Rooms (or single modules of them) beside its own that a room may import."""

COMMANDS_MAY = {"gateway", "spark.java", "spark.jobs"}
"""What a command may import beyond the SDK; inside functions only, so that `skep --help` stays quick."""

TESTING_MAY = {"bindings.mqtt.engines"}
"""What `skep.testing` may import beyond the SDK: its gateway is the real MQTT server."""

CHILDREN = {
    ("skep.consumer", "skep.requested"),
    ("skep.consumer", "skep.thing"),
    ("skep.hyperty.runtime", "skep.hyperty.observer"),
    ("skep.hyperty.runtime", "skep.hyperty.reporter"),
}
"""Objects of the SDK that hand themselves out to a user, and what they hand out, which asks them in turn."""

THINGS_MAY = {"pydantic", "pydantic_core", "jsonschema_rs"}

OUTSIDE = {"asyncio", "fcntl", "os", "shutil", "socket", "sqlite3", "subprocess", "tempfile", "threading"}


def test_no_room_imports_what_is_above_or_beside_it() -> None:
    broken = [
        f"{module} imports {imported} (line {line})"
        for module, _, imported, line, _ in _imports()
        if _room(imported) in ROOMS and not _may(module, imported)
    ]

    assert not broken, "\n".join(broken)


SHARED = ("wire", "web")
"""What bindings share: envelopes, and serving over HTTP. Neither knows a binding; `wire` does not know `web` either."""


def test_bindings_do_not_know_each_other_but_share_wire_and_web() -> None:
    broken = [
        f"{module} imports {imported} (line {line})"
        for module, _, imported, line, _ in _imports()
        if module.startswith("bindings.")
        and imported.startswith("bindings.")
        and imported.split(".")[1] not in _beside(module.split(".")[1])
    ]

    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_is_known_by_a_file_that_it_knows(room: str) -> None:
    modules = {module for module, *_ in _imports() if _room(module) == room}
    # `from package import name` may name a module or what is in one; imports for the type checker count too.
    known: dict[str, set[str]] = {module: set() for module in modules}
    for module, _, imported, _, _ in _imports():
        if module in modules:
            named = imported if imported in modules else imported.rpartition(".")[0]
            if (named, module) not in CHILDREN:
                known[module] |= {named} & modules

    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_things_uses_the_standard_library_pydantic_and_one_schema_validator() -> None:
    broken = [
        f"{module} imports {imported} (line {line})"
        for module, room, imported, line, _ in _imports()
        if room == "things" and _room(imported) not in {"things", *THINGS_MAY, *sys.stdlib_module_names}
    ]

    assert not broken, "\n".join(broken)


def test_things_does_no_input_or_output_but_in_the_module_that_writes_files_whole() -> None:
    broken = [
        f"{module} imports {imported} (line {line})"
        for module, room, imported, line, _ in _imports()
        if room == "things" and module != "things.whole_files" and _room(imported) in OUTSIDE
    ]

    assert not broken, "\n".join(broken)


def test_every_module_of_the_core_has_a_test_that_names_it() -> None:
    missing = [
        str(test)
        for path in sorted((ROOT / "runtime").rglob("*.py"))
        # Ports say what others do, and are held by the suites over every implementation.
        if path.parent.name != "ports" and _does_something(path)
        for test in [Path("tests", path.relative_to(ROOT)).with_name(f"test_{path.name}")]
        if not (ROOT / test).exists()
    ]

    assert not missing, "\n".join(missing)


def _does_something(path: Path) -> bool:
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(ast.parse(path.read_text()))
    )


def test_commands_import_the_gateway_only_when_they_run() -> None:
    broken = [
        f"{module} imports {imported} at its top (line {line})"
        for module, room, imported, line, lazy in _imports()
        if room == "skep" and _room(imported) in {"gateway", "spark"} and not lazy
    ]

    assert not broken, "\n".join(broken)


def _beside(binding: str) -> Sequence[str]:
    """The folders of `bindings` that one of them may import."""
    return (binding, *SHARED[: SHARED.index(binding)]) if binding in SHARED else (binding, *SHARED)


def _may(module: str, imported: str) -> bool:
    room = _room(module)
    if _room(imported) == room:
        return True
    allowed = ALLOWED[room]
    if module.startswith("skep.cli"):
        allowed = allowed | COMMANDS_MAY
    if module.startswith("skep.testing"):
        allowed = allowed | TESTING_MAY
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
                    names = [f"{base}.{alias.name}" for alias in node.names]
                for name in names:
                    if isinstance(node, ast.Import | ast.ImportFrom):
                        yield module, room, name, node.lineno, id(node) not in at_top
