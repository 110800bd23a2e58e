"""`skep plot`: a property's history as a picture."""

from datetime import datetime
from pathlib import Path

import click

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.moments import Moment
from skep.cli.output import print_json
from skep.consumer import Consumer
from things.errors import NotFound, Unavailable
from things.messages import JSONValue

PAGE = 1_000


@click.command(epilog="Example: skep plot dtw:pumps:pump-1 flow --from 1h --to-file flow.png --home ./site")
@click.argument("thing")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--from", "start", type=Moment(), help="Since: a time, or 10m for ten minutes ago.")
@click.option("--to", "end", type=Moment(), help="Before.")
@click.option("--to-file", "path", type=click.Path(path_type=Path), default=Path("plot.png"), show_default=True)
@access_options
def plot(access: Access, thing: str, names: tuple[str, ...], start: str | None, end: str | None, path: Path) -> None:
    """Draw numeric properties of THING over time into a picture (png, svg or pdf by its ending)."""
    try:
        import matplotlib
    except ImportError as error:
        raise Unavailable("plots need matplotlib: pip install 'skep[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.dates import date2num

    bounds = {key: value for key, value in (("from", start), ("to", end)) if value is not None}

    async def work(consumer: Consumer) -> dict[str, list[dict[str, JSONValue]]]:
        one = consumer.thing(thing)
        await one.describe()
        return {name: await one.history(name, order="desc", limit=str(PAGE), **bounds) for name in names}

    found = with_consumer(access, work)
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    drawn = 0
    for name, rows in found.items():
        points = [
            (date2num(datetime.fromisoformat(str(row["created"]))), float(value))  # type: ignore[no-untyped-call]
            for row in reversed(rows)
            if isinstance(value := row.get("value"), int | float)
        ]
        if points:
            axes.step([at for at, _ in points], [value for _, value in points], where="post", label=name)
        drawn += len(points)
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
