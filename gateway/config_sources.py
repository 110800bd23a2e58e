"""Where the configuration comes from: the file, over it the environment, and files that hold secrets.

`SKEP_SECTION__KEY` in the environment is `key` under `[section]`; a key above all sections has one underscore only
(`SKEP_DATABASE_URL`). Any key that takes text can be had from a file, which is how containers and service managers
hand over secrets: by `SKEP_SECTION__KEY_FILE`, or as `key = { file = "PATH" }` in the file.
"""

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from things.errors import ConfigInvalid

PREFIX = "SKEP_"
MAX_SECRET_BYTES = 65_536

Kind = Callable[[tuple[str, ...]], str | None]
"""What the key at a path takes: "text", "texts" (a list of them) or "other"; None where there is no such key."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What was said, as nested tables, and where each key was (`skep.toml`, the name of a variable), by dotted key."""

    data: dict[str, Any]
    origins: dict[str, str] = field(default_factory=dict)


def read(file: Path, environment: Mapping[str, str], kind: Kind) -> Settings:
    """The file's settings with the environment's over them; no file is an empty one. Raises ConfigInvalid."""
    settings = Settings(_of_file(file))
    for path, _ in _leaves(settings.data):
        settings.origins[".".join(path)] = file.name
    _resolve(settings, file, kind)
    for name, text in sorted(environment.items()):
        key = _path(name)
        if key is not None:
            _lay(settings, name, key, text, kind)
    return settings


def _of_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigInvalid(f"{file.name}: {error}") from error


def _path(name: str) -> tuple[str, ...] | None:
    """The key that a variable is about; None for one that is not about the configuration."""
    if not name.startswith(PREFIX):
        return None
    path = tuple(name.removeprefix(PREFIX).lower().split("__"))
    # Others that begin like this are of commands (SKEP_HOME, SKEP_TOKEN).
    return path if len(path) > 1 or path[0] in ("database_url", "database_url_file") else None


def _lay(settings: Settings, name: str, path: tuple[str, ...], text: str, kind: Kind) -> None:
    if kind(path) is None and path[-1].endswith("_file"):
        target = (*path[:-1], path[-1].removesuffix("_file"))
        if kind(target) == "text":
            path, text = target, _secret(name, Path(text))
    table = settings.data
    for step in path[:-1]:
        standing = table.get(step)
        table[step] = table = dict(standing) if isinstance(standing, dict) else {}
    table[path[-1]] = value_of(text, kind(path))
    settings.origins[".".join(path)] = name


def value_of(text: str, kind: str | None) -> Any:
    """What a text means for a key of that kind; for other kinds it is written as in the file."""
    if kind == "text":
        return text
    if kind == "texts" and not text.lstrip().startswith("["):
        return [each.strip() for each in text.split(",") if each.strip()]
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def _resolve(settings: Settings, file: Path, kind: Kind) -> None:
    """Put the content of files in the place of `{ file = … }`."""
    for path, table in list(_tables(settings.data)):
        if kind(path) == "text" and set(table) == {"file"} and isinstance(table["file"], str):
            key = ".".join(path)
            holder = settings.data
            for step in path[:-1]:
                holder = holder[step]
            holder[path[-1]] = _secret(f"{file.name}: {key}", Path(table["file"]))
            del settings.origins[f"{key}.file"]
            settings.origins[key] = f"{table['file']}, as {file.name} says"


def _secret(who: str, path: Path) -> str:
    """The content of a file without the line break at its end. Raises ConfigInvalid."""
    try:
        with path.open("rb") as source:
            content = source.read(MAX_SECRET_BYTES + 1)
        if len(content) > MAX_SECRET_BYTES:
            raise ConfigInvalid(f"{who}: {path} is larger than {MAX_SECRET_BYTES} bytes")
        return content.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ConfigInvalid(f"{who}: {path} holds no text") from error
    except OSError as error:
        raise ConfigInvalid(f"{who}: {path} cannot be read: {os.strerror(error.errno or 0)}") from error


def _leaves(table: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value


def _tables(table: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield (*prefix, name), value
            yield from _tables(value, (*prefix, name))
