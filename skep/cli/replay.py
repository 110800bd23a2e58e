"""`skep replay`: a CSV recording as a Thing."""

import re
from pathlib import Path

import click

from skep.cli.access import run_async
from skep.cli.agents import agent_for, agent_options
from skep.cli.output import print_json
from skep.recording import Recording, Unreadable
from skep.replayer import AS_FAST_AS_POSSIBLE, Played, play
from things.errors import Invalid

SHOWN_UNREADABLE = 10


@click.command(
    epilog="""\b
Examples:
  skep replay temperatures.csv --home ./site --thing hall --speed 3600
  skep replay log.csv --mqtt mqtts://gateway:8883 --ca ca.pem --agent logger --speed max
"""
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--thing", help="Thing to be. [default: the file's name]")
@click.option("--title", help="What the Thing is called.")
@click.option("--speed", default="1", show_default=True, help="60 plays an hour in a minute; `max` as fast as can be.")
@click.option("--time-column", help="Column with the times, where it is not found by itself.")
@click.option("--unit", "units", multiple=True, metavar="NAME=UNIT", help="Unit of a column; may be given often.")
@click.option("--limit", type=click.IntRange(min=1), help="Rows to play at most.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@agent_options("replay")
def replay(
    file: Path,
    thing: str | None,
    title: str | None,
    speed: str,
    time_column: str | None,
    units: tuple[str, ...],
    limit: int | None,
    as_json: bool,
    home: Path,
    agent: str,
    mqtt: str | None,
    token: str | None,
    ca: Path | None,
) -> None:
    """Play FILE as a Thing: columns become properties, with the times they were recorded at.

    Delimiter, header, time column and types are found by reading the file. Rows that do not fit are reported with
    their line number, skipped and counted.
    """
    pace = speed_of(speed)
    recording = Recording.open(file, time_column=time_column)
    name = thing or re.sub(r"[^A-Za-z0-9._:@-]+", "-", file.stem)[:128] or "recording"
    wanted = dict(_unit(text) for text in units)
    unreadable: list[Unreadable] = []

    def note(row: Unreadable) -> None:
        unreadable.append(row)
        if len(unreadable) <= SHOWN_UNREADABLE:
            click.echo(f"{file.name}:{row.line}: unreadable: {row.reason}", err=True)

    async def work() -> Played:
        speaker = await agent_for(home, agent, mqtt=mqtt, token=token, ca=ca)
        speaker.expose(name, recording.td(title or file.stem, wanted))
        async with speaker:
            await speaker.connected()
            played = await play(speaker, name, recording, speed=pace, limit=limit, on_unreadable=note)
            await speaker.flush()
            return played

    played = run_async(work())
    if as_json:
        print_json(
            {
                "thingID": f"dtw:{agent}:{name}",
                "rows": played.rows,
                "values": played.values,
                "unreadable": played.unreadable,
                "backward": played.backward,
            }
        )
        return
    more = f", {played.unreadable} unreadable rows skipped" if played.unreadable else ""
    click.echo(f"played {played.rows} rows, {played.values} values as dtw:{agent}:{name}{more}")


def speed_of(text: str) -> float:
    """A factor above zero, or `max`; raises Invalid."""
    if text == "max":
        return AS_FAST_AS_POSSIBLE
    try:
        speed = float(text.removesuffix("x"))
    except ValueError as error:
        raise Invalid(f"--speed {text!r} is neither a number nor max") from error
    if not 0 < speed < AS_FAST_AS_POSSIBLE:
        raise Invalid("--speed must be more than 0")
    return speed


def _unit(text: str) -> tuple[str, str]:
    name, equals, unit = text.partition("=")
    if not equals or not name or not unit:
        raise Invalid(f"--unit {text!r} is not NAME=UNIT")
    return name, unit
