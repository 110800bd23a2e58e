"""`skep audit`: the log of security acts."""

import csv
import io
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import click

from skep.cli.access import Access, access_options, run_async, with_consumer
from skep.cli.failures import Unsuccessful
from skep.cli.output import items_of, print_json, print_table, short_time
from skep.consumer import Consumer
from things.csv_rows import text_cell
from things.messages import JSONValue
from things.service_ids import ACCOUNTS

CLASSES = ("administration", "access", "use", "refusals")
COLUMNS = ("seq", "at", "class", "act", "by", "target", "outcome", "source", "omitted", "details", "line")
PAGE = 1_000


@click.group()
def audit() -> None:
    """The log of security acts: signed lines, each with the hash of the one before."""


@audit.command(epilog="Example: skep audit ls --class access --limit 50 --home ./site")
@click.option("--class", "class_", type=click.Choice(CLASSES), help="Only acts of this class.")
@click.option("--after", type=click.IntRange(min=0), help="Those after this number, in place of the latest.")
@click.option("--limit", type=click.IntRange(1, PAGE), default=20, show_default=True, help="Acts at most.")
@access_options
def ls(access: Access, class_: str | None, after: int | None, limit: int) -> None:
    """List acts, the latest last."""
    wanted: dict[str, JSONValue] = {"limit": limit}
    if class_ is not None:
        wanted["class"] = class_
    if after is not None:
        wanted["after"] = after

    async def work(consumer: Consumer) -> list[dict[str, JSONValue]]:
        return [dict(act) for act in items_of(await consumer.call(ACCOUNTS, "readAudit", wanted))]

    acts = with_consumer(access, work)
    if access.json:
        print_json(acts)
        return
    names = ("act", "by", "target", "outcome", "source", "omitted")
    print_table(
        ("seq", "at", *names),
        ([act.get("seq"), short_time(act.get("at")), *(act.get(name) for name in names)] for act in acts),
        empty="no acts",
    )


@audit.command(epilog="Example: skep audit verify --home ./site")
@click.option("--file", "export", type=click.Path(exists=True, path_type=Path), help="An export, in place of a log.")
@click.option("--key", help="The public key that must have signed the export.")
@click.option("--anchors", type=click.Path(exists=True, path_type=Path), help="Lines with its anchors: a syslog.")
@access_options
def verify(access: Access, export: Path | None, key: str | None, anchors: Path | None) -> None:
    """Check that no line of the audit log was changed or taken out. Exit code 1: one was."""
    found: JSONValue
    if export is not None:
        from gateway.audit_exports import verified_export

        found = verified_export(export, key=key, anchors=anchors)
    elif key is not None or anchors is not None:
        raise click.UsageError("--key and --anchors go with --file; a gateway has its own witnesses")
    else:
        found = with_consumer(access, lambda consumer: consumer.call(ACCOUNTS, "verifyAudit", timeout_s=600))
    intact = isinstance(found, dict) and found.get("intact") is True
    if access.json:
        print_json(found)
    elif isinstance(found, dict):
        where = f"{found['file']} line {found['line']}: " if found.get("file") else ""
        click.echo(
            f"intact · {found.get('acts')} acts · {found.get('anchors')} anchors"
            if intact
            else f"broken · {where}{found.get('reason')}"
        )
        if found.get("key"):
            click.echo(f"signed by {found['key']}")
        notes = found.get("notes")
        for note in notes if isinstance(notes, list) else ():
            click.echo(f"note: {note}")
    if not intact:
        raise Unsuccessful


@audit.command(epilog="Example: skep audit export --out audit.jsonl --home ./site")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write, not standard output.")
@click.option("--format", "format_", type=click.Choice(("jsonl", "csv")), default="jsonl", show_default=True)
@access_options
def export(access: Access, out: Path | None, format_: str) -> None:
    """Write all lines as they are signed: whoever has the public key can verify the file without the gateway."""

    async def work() -> int:
        count = 0
        async with access.opened() as consumer:
            with click.open_file(str(out) if out else "-", "w", encoding="utf-8") as file:
                if format_ == "csv":
                    file.write(_row(COLUMNS))
                async for act in _all(consumer):
                    line = json.dumps(act, ensure_ascii=True, separators=(",", ":"))
                    file.write(_row(_cells(act, line)) if format_ == "csv" else f"{line}\n")
                    count += 1
        return count

    count = run_async(work())
    if out is not None:
        click.echo(f"{count} lines in {out}; check them: skep audit verify --file {out} --key KEY", err=True)


async def _all(consumer: Consumer) -> AsyncIterator[dict[str, Any]]:
    after = 0
    while True:
        wanted: dict[str, JSONValue] = {"after": after, "limit": PAGE}
        page = items_of(await consumer.call(ACCOUNTS, "readAudit", wanted))
        if not page:
            return
        for act in page:
            yield dict(act)
            after = int(str(act["seq"]))


def _cells(act: dict[str, Any], line: str) -> list[object]:
    return [line if name == "line" else _cell(act.get(name, "")) for name in COLUMNS]


def _cell(value: object) -> object:
    """What steers no terminal and starts no formula."""
    if isinstance(value, str):
        return text_cell(json.dumps(value)[1:-1])
    return json.dumps(value) if isinstance(value, dict) else value


def _row(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
