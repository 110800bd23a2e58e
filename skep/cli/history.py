"""`skep history`: stored values and events, and the sealed lake they end up in."""

from pathlib import Path

import click

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.failures import Unsuccessful
from skep.cli.homes import entered_home
from skep.cli.moments import Moment
from skep.cli.output import items_of, print_json, print_table, short_time
from skep.cli.patience import held_in_time
from skep.consumer import Consumer
from things.addresses import encode_segment
from things.errors import Unavailable
from things.messages import JSONValue
from things.service_ids import LAKE

LONG_WORK_S = 600.0


@click.group()
def history() -> None:
    """What Things said before; sealing it for Spark."""


@history.command(epilog="Example: skep history show dtw:pumps:pump-1 flow --from 1h --home ./site")
@click.argument("thing")
@click.argument("name", required=False)
@click.option("--kind", type=click.Choice(("event", "property")), help="Only events, or only property values.")
@click.option("--from", "start", type=Moment(), help="Since: a time, or 10m for ten minutes ago.")
@click.option("--to", "end", type=Moment(), help="Before.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Rows at most.")
@click.option("--oldest-first", is_flag=True, help="Begin with the oldest row.")
@access_options
def show(
    access: Access,
    thing: str,
    name: str | None,
    kind: str | None,
    start: str | None,
    end: str | None,
    limit: int,
    oldest_first: bool,
) -> None:
    """Show stored values and events of THING, newest first."""
    query: dict[str, str] = {"limit": str(limit), "order": "asc" if oldest_first else "desc"}
    for key, value in (("name", name), ("kind", kind), ("from", start), ("to", end)):
        if value is not None:
            query[key] = value

    async def work(consumer: Consumer) -> list[dict[str, JSONValue]]:
        page = await consumer.http.json("GET", f"/things/{encode_segment(thing)}/history", query=[*query.items()])
        return [dict(item) for item in items_of(page)]

    found = with_consumer(access, work)
    if access.json:
        print_json(found)
        return
    print_table(
        ("created", "kind", "name", "value"),
        ((short_time(one.get("created")), one.get("kind"), one.get("name"), one.get("value")) for one in found),
        empty="nothing stored",
    )


@history.command(epilog="Example: skep history seal --home ./site")
@access_options
def seal(access: Access) -> None:
    """Seal everything that is stored so far into the lake, where Spark reads it."""
    found = call_lake(access, "seal")
    if access.json:
        print_json(found)
    elif isinstance(found, dict):
        click.echo(f"sealed {found.get('rows')} rows into {found.get('parts')} parts, up to row {found.get('last')}")


@history.command(epilog="Example: skep history restamp --first 120 --last 480 --by -3600 --home ./site")
@click.option("--home", type=click.Path(path_type=Path), help="Data folder. [default: $SKEP_HOME, ~/.skep]")
@click.option("--first", type=click.IntRange(min=1), help="The first row.")
@click.option("--last", type=click.IntRange(min=1), help="The last row.")
@click.option("--by", type=float, help="Seconds to add to their times.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def restamp(home: Path | None, first: int | None, last: int | None, by: float | None, as_json: bool) -> None:
    """Set times right that a wrong clock gave; without options: list the rows that seem to have such. Nothing may run.

    Only what the gateway stamped itself is moved. The rows are flagged (quality 4096), their former time stays as
    source time, and the audit log says what was done. Sealed rows keep their times.
    """
    from gateway.config import Config
    from gateway.restamping import doubtful_rows, restamp_rows

    folder = entered_home(home).absolute()
    if not folder.is_dir():
        raise Unavailable(f"there is no data folder {folder}")
    with held_in_time(folder):
        config = Config.load(folder)
        if first is None and last is None and by is None:
            found = doubtful_rows(folder, config)
            if as_json:
                print_json([{"first": one.first, "last": one.last, "by": one.by / 1e6} for one in found])
                return
            rows = ((one.first, one.last, f"{one.by / 1e6:g}") for one in found)
            print_table(("first", "last", "by about (s)"), rows, empty="no row seems to have a wrong time")
            return
        if first is None or last is None or by is None:
            raise click.UsageError("--first, --last and --by go together")
        done = restamp_rows(folder, config, first, last, by)
    if as_json:
        print_json({"first": done.first, "last": done.last, "rows": done.rows})
    else:
        click.echo(f"{done.rows} rows from {done.first} to {done.last} were moved by {by:g} s")


@history.command()
@access_options
def plan(access: Access) -> None:
    """Predict how large the history grows, and what retention will drop."""
    found = call_lake(access, "plan")
    if access.json or not isinstance(found, dict):
        print_json(found)
        return
    rules = found.pop("rules", None)
    _print(access, found)
    if isinstance(rules, list):
        columns = ("thing_id", "name", "days", "bytes")
        kept = [[rule.get(column) for column in columns] for rule in rules if isinstance(rule, dict)]
        print_table(("thing", "name", "days", "bytes"), kept, empty="everything is kept")


@history.command()
@click.option("--quarantine", is_flag=True, help="Set damaged parts aside, so that the others can be read again.")
@access_options
def verify(access: Access, quarantine: bool) -> None:
    """Read every sealed part and compare it with what the manifest says."""
    found = call_lake(access, "verify", {"quarantine": quarantine})
    _print(access, found)
    if isinstance(found, dict) and (found.get("intact") is False or found.get("problems")):
        raise Unsuccessful


@history.command(epilog="Example: skep history export dtw:pumps:pump-1 --name flow --to-file flow.csv")
@click.argument("thing")
@click.option("--name", help="Only this name.")
@click.option("--from", "start", type=Moment(), help="Since.")
@click.option("--to", "end", type=Moment(), help="Before.")
@click.option("--to-file", "path", type=click.Path(path_type=Path), required=True, help="Where to write, as CSV.")
@access_options
def export(access: Access, thing: str, name: str | None, start: str | None, end: str | None, path: Path) -> None:
    """Write the history of THING to a CSV file, oldest first; values are JSON texts."""
    import csv

    from things.csv_rows import csv_row

    filters = [(key, value) for key, value in (("name", name), ("from", start), ("to", end)) if value is not None]

    async def work(consumer: Consumer) -> int:
        rows, cursor = 0, None
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("created", "thing", "kind", "name", "value"))
            columns = ("created", "thingID", "kind", "name", "value")
            while True:
                query = [*filters, ("limit", "1000"), *([("cursor", cursor)] if cursor else [])]
                page = await consumer.http.json("GET", f"/things/{encode_segment(thing)}/history", query=query)
                for item in items_of(page):
                    writer.writerow(csv_row(item, columns))
                    rows += 1
                found = page.get("cursor") if isinstance(page, dict) else None
                if not isinstance(found, str):
                    return rows
                cursor = found

    rows = with_consumer(access, work)
    if access.json:
        print_json({"file": str(path), "rows": rows})
    else:
        click.echo(f"{rows} rows in {path}")


def call_lake(access: Access, method: str, data: JSONValue = None) -> JSONValue:
    """Ask the lake's service; LONG_WORK_S at most."""

    async def work(consumer: Consumer) -> JSONValue:
        return await consumer.call(LAKE, method, data, timeout_s=LONG_WORK_S)

    return with_consumer(access, work)


def _print(access: Access, found: JSONValue) -> None:
    if access.json or not isinstance(found, dict):
        print_json(found)
        return
    items = items_of(found)
    if items:
        columns = list(items[0])
        print_table(columns, ([item.get(column) for column in columns] for item in items))
    print_table(("", ""), ((key, value) for key, value in found.items() if key != "items"))
