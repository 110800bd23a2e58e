"""`skep plot`: a property's history as a picture."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import click

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.moments import Moment
from skep.cli.output import items_of, print_json
from skep.consumer import Consumer
from things.addresses import encode_segment
from things.errors import NotFound, Unavailable
from things.messages import JSONValue
from things.times import parse_time, rfc3339

POINTS = 1_000
"""Values, or windows of them, in a line."""


class Line(NamedTuple):
    """What is drawn of one property: times as text, values, and the least and greatest that each stands for."""

    at: list[str]
    values: list[float]
    least: list[float]
    most: list[float]


@click.command(epilog="Example: skep plot dtw:pumps:pump-1 flow --since 1d --out flow.png --home ./site")
@click.argument("thing")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--since", "--from", "start", type=Moment(), help="A time, or 10m for ten minutes ago.")
@click.option("--to", "end", type=Moment(), help="Before.")
@click.option(
    "--out", "--to-file", "path", type=click.Path(path_type=Path), default=Path("plot.png"), show_default=True
)
@access_options
def plot(access: Access, thing: str, names: tuple[str, ...], start: str | None, end: str | None, path: Path) -> None:
    """Draw numeric properties of THING over time into a picture (png, svg or pdf by its ending).

    What is more than a thousand values is drawn as means, with the least and greatest around them.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise Unavailable("plots need matplotlib: pip install 'skep[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.dates import date2num

    bounds = {key: value for key, value in (("from", start), ("to", end)) if value is not None}

    async def work(consumer: Consumer) -> dict[str, Line]:
        one = consumer.thing(thing)
        await one.describe()
        return {name: await _line(consumer, thing, name, bounds) for name in names}

    found = with_consumer(access, work)
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    drawn = 0
    for name, line in found.items():
        at = [date2num(datetime.fromisoformat(time)) for time in line.at]  # type: ignore[no-untyped-call]
        if at:
            (drawing,) = axes.step(at, line.values, where="post", label=name)
            axes.fill_between(at, line.least, line.most, step="post", alpha=0.2, color=drawing.get_color())
        drawn += len(at)
    if not drawn:
        raise NotFound(f"{thing} has no stored numbers named {', '.join(names)}")
    axes.xaxis_date()
    axes.set_title(thing)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.autofmt_xdate()
    figure.savefig(path)
    pyplot.close(figure)
    if access.json:
        print_json({"file": str(path), "points": drawn})
    else:
        click.echo(f"{drawn} points in {path}")


async def _line(consumer: Consumer, thing: str, name: str, bounds: Mapping[str, str]) -> Line:
    query = {"name": name, "kind": "property", **bounds}
    path = f"/things/{encode_segment(thing)}/history"
    page = await consumer.http.json("GET", path, query=[*query.items(), ("limit", str(POINTS + 1))])
    rows = items_of(page)
    if len(rows) > POINTS:
        # Too many to draw one by one, and the first page is not the whole. Points are shared out between the first
        # value and the last.
        page = await consumer.http.json("GET", path, query=[*query.items(), ("order", "desc"), ("limit", "1")])
        query["from"] = str(rows[0]["created"])
        query["to"] = rfc3339(parse_time(str(items_of(page)[0]["created"])) + 1)
        page = await consumer.http.json("GET", path, query=[*query.items(), ("points", str(POINTS))])
        rows = items_of(page)
        return _of([(one["from"], one["avg"], one["min"], one["max"]) for one in rows])
    return _of([(one["created"], one["value"], one["value"], one["value"]) for one in rows])


def _of(points: Sequence[tuple[JSONValue, ...]]) -> Line:
    numbers = [
        (str(at), float(value), float(least), float(most))
        for at, value, least, most in points
        if isinstance(value, int | float) and isinstance(least, int | float) and isinstance(most, int | float)
    ]
    return Line(*([one[column] for one in numbers] for column in range(4)))  # type: ignore[arg-type]
