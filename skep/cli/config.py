"""`skep config`: what a data folder's runtime is configured with, from where, and whether it holds."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from skep.cli.homes import entered_home
from skep.cli.output import print_json, print_table
from things.errors import ConfigInvalid, NotFound
from things.suggestions import did_you_mean
from things.whole_files import write_whole

DEFAULT = "default"
_PASSWORD = re.compile(r"(://[^:/@]*:)[^@]*@")


def _home(command: Any) -> Any:
    option = click.option("--home", type=click.Path(path_type=Path), help="Data folder. [default: $SKEP_HOME, ~/.skep]")
    return option(command)


@click.group()
def config() -> None:
    """Look at the configuration, check and change it."""


@config.command(epilog="Example: skep config check --home ./site")
@_home
def check(home: Path | None) -> None:
    """Check skep.toml, what the environment lays over it, and the own certificate that it names. Exit code 7: a runtime
    would refuse it."""
    from gateway.config import FILE_NAME, Config, settings
    from gateway.server_certificate import lying, own_certificate

    folder = _folder(home)
    said = settings(folder)
    config = Config.of(said)
    if own_certificate(config) is not None:
        lying(folder, config)
    where = FILE_NAME if (folder / FILE_NAME).exists() else f"no {FILE_NAME}"
    laid = sum(origin != FILE_NAME for origin in said.origins.values())
    click.echo(f"fine: {where}, {len(said.origins)} keys set" + (f", {laid} of them not there" if laid else ""))


@config.command(
    epilog="""\b
Examples:
  skep config show --home ./site
  skep config show mqtt --effective --origin"""
)
@click.argument("which", metavar="[KEY or SECTION]...", nargs=-1)
@_home
@click.option("--effective", is_flag=True, help="Every key, those left at their default too.")
@click.option("--origin", is_flag=True, help="Where each is set.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(which: Sequence[str], home: Path | None, effective: bool, origin: bool, as_json: bool) -> None:
    """Print what is set. Passwords within addresses are not shown."""
    from gateway.config import Config, keys, settings

    said = settings(_folder(home))
    standing = Config.of(said).model_dump(mode="json", exclude_none=True)
    known = [key for key, _ in keys()]
    for each in which:
        if not any(_is_below(key, each) for key in known):
            raise NotFound(f"there is no key {each!r}{did_you_mean(each, known)}")
    chosen = {
        key: (_shown(_value(standing, key)), _origin(said.origins, key))
        for key in known
        if any(_is_below(key, each) for each in which) or not which
    }
    if not effective and not which:
        chosen = {key: row for key, row in chosen.items() if row[1] != DEFAULT}
    if as_json:
        print_json(
            {key: {"value": value, "origin": where} if origin else value for key, (value, where) in chosen.items()}
        )
    elif not chosen:
        click.echo("everything is as it is by default; all of it: skep config show --effective")
    else:
        rows = [(key, _toml(value), *([where] if origin else [])) for key, (value, where) in chosen.items()]
        print_table(("key", "value", *(["from"] if origin else [])), rows)


@config.command(
    "set",
    epilog="""\b
Examples:
  skep config set http.https 0.0.0.0:8443
  skep config set gateway.names 'gw.example, 192.0.2.7'
  skep config set history.keep_days 365""",
)
@click.argument("key")
@click.argument("value")
@_home
def set_(key: str, value: str, home: Path | None) -> None:
    """Set a key in skep.toml; comments and order stay. What a runtime would refuse is not written."""
    from gateway.config import kind_of
    from gateway.config_sources import value_of

    kind = kind_of(_known(key))
    _rewritten(_folder(home), key, value_of(value, kind))
    click.echo(f"{key} is set; it counts from the next start; what a reload reads, from that")


@config.command(epilog="Example: skep config unset history.keep_days")
@click.argument("key")
@_home
def unset(key: str, home: Path | None) -> None:
    """Take a key out of skep.toml, so that its default counts."""
    _known(key)
    _rewritten(_folder(home), key, None)
    click.echo(f"{key} is not set any more; its default counts from the next start")


def _rewritten(folder: Path, key: str, value: Any) -> None:
    """Write skep.toml anew with another value for a key; None takes it out. Raises ConfigInvalid, NotFound."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    from gateway.config import FILE_NAME, Config, settings

    file = folder / FILE_NAME
    settings(folder, {})  # what is no TOML is refused in the words of every other command
    try:
        document = tomlkit.parse(file.read_text("utf-8") if file.exists() else "version = 1\n")
        *sections, name = key.split(".")
        table: Any = document
        for section in sections:
            if section not in table:
                if value is None:
                    raise NotFound(f"{key} is not set in {FILE_NAME}")
                table[section] = tomlkit.table()
            table = table[section]
        if value is not None:
            table[name] = value
        elif name in table:
            del table[name]
        else:
            raise NotFound(f"{key} is not set in {FILE_NAME}")
        text = tomlkit.dumps(document)
    except TOMLKitError as error:
        raise ConfigInvalid(f"{FILE_NAME}: {error}") from error
    Config.of(tomlkit.parse(text).unwrap())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
    write_whole(file, text.encode(), mode)


def _folder(home: Path | None) -> Path:
    return entered_home(home)


def _known(key: str) -> tuple[str, ...]:
    from gateway.config import keys, kind_of

    path = tuple(key.split("."))
    if kind_of(path) is None:
        raise NotFound(f"there is no key {key!r}{did_you_mean(key, [each for each, _ in keys()])}")
    return path


def _value(standing: Mapping[str, Any], key: str) -> Any:
    value: Any = standing
    for step in key.split("."):
        value = value.get(step)
    return value


def _origin(origins: Mapping[str, str], key: str) -> str:
    """Where a key, or something in a table that is its value, was set."""
    found = sorted({where for path, where in origins.items() if _is_below(path, key)})
    return ", ".join(found) or DEFAULT


def _is_below(key: str, name: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def _shown(value: Any) -> Any:
    return _PASSWORD.sub(r"\1***@", value) if isinstance(value, str) else value


def _toml(value: Any) -> str:
    """As it would stand in the file; empty for what is not set."""
    if value is None:
        return ""
    from tomlkit import item

    return str(item(value).as_string())
