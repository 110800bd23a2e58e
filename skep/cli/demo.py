"""`skep demo`: the journey, told step by step; then it keeps running, or with --once ends with a verdict."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from skep.cli.access import run_async
from skep.cli.failures import Unsuccessful
from skep.cli.output import cell, console, print_table
from things.errors import SkepError

if TYPE_CHECKING:
    from skep.cli.journey import Journey, Step

SHOWN_ROWS = 12


@click.command(epilog="Example: skep demo --once")
@click.option("--once", is_flag=True, help="Check every step, print one line, and end: 0 if all is well, else 1.")
@click.option("--home", type=click.Path(path_type=Path), help="Fresh data folder to use. [default: ./.demo/home]")
def demo(once: bool, home: Path | None) -> None:
    """Start a runtime with simulated devices and a real recording, and walk the whole way from MQTT to Spark.

    Steps that need packages which are not installed are left out and named before the first step.
    """
    with _fresh(home, once) as folder:
        run_async(_walk(folder, once))


async def _walk(home: Path, once: bool) -> None:
    from skep.cli.journey import Journey

    journey = Journey(home=home)
    began = time.monotonic()
    steps, left_out = _sorted_out(journey.steps())
    for each in left_out:
        console().print(f"[yellow]–[/] left out: {each.name}, for want of {each.needs}", soft_wrap=True)
    if left_out:
        console().print("  all of it: pip install 'skep\\[demo]'", soft_wrap=True)
    async with journey.walking():
        for number, step in enumerate(steps, 1):
            name = step.name
            try:
                with console().status(f"{number}/{len(steps)} {name} …"):
                    sentence = await step.walk()
            except (SkepError, OSError, TimeoutError) as error:
                detail = f"{error.code}: {error.detail}" if isinstance(error, SkepError) else str(error)
                console().print(f"[red]✗[/] {number}/{len(steps)} {name}: {cell(detail)}", soft_wrap=True)
                click.echo(f"demo: failed at step {number} of {len(steps)}, {name}")
                raise Unsuccessful from error
            console().print(f"[green]✓[/] {number}/{len(steps)} {name}: {cell(sentence)}", soft_wrap=True)
        if journey.rollup:
            _print_rollup(journey.rollup)
        seconds = time.monotonic() - began
        click.echo(
            f"demo: {len(steps)} of {len(steps)} steps ok in {seconds:.0f} s,"
            f" first live value after {journey.first_value_s:.1f} s"
            + (f"; {len(left_out)} left out" if left_out else "")
        )
        if not once:
            _print_invitation(journey)
            await anyio.sleep_forever()


def _sorted_out(steps: "Sequence[Step]") -> "tuple[list[Step], list[Step]]":
    """The steps that are possible with what is installed, and the others."""
    return [step for step in steps if step.is_possible], [step for step in steps if not step.is_possible]


def _print_rollup(rows: Sequence[Mapping[str, Any]]) -> None:
    """The newest windows of each series, a few of each."""
    by_series: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        by_series.setdefault((row["thing_id"], row["name"]), []).append(row)
    shown = [row for series in by_series.values() for row in series[-1:]][:SHOWN_ROWS]
    print_table(
        ("thing", "name", "window", "count", "min", "mean", "max"),
        (
            (
                row["thing_id"],
                row["name"],
                str(row["window_start"])[:16].replace("T", " "),
                row["count"],
                _number(row["min"]),
                _number(row["mean_tw"]),
                _number(row["max"]),
            )
            for row in shown
        ),
    )


def _print_invitation(journey: "Journey") -> None:
    beside = Path(sys.executable).with_name("skep")
    skep = os.path.relpath(beside) if beside.exists() else f"{sys.executable} -m skep"
    home = journey.home
    click.echo(
        f"""
It keeps running; Ctrl-C ends it.
  page   {journey.ready["http"]}/   log in as ann, password {journey.password}
  API    {journey.ready["https"]}   certificate of its CA: {journey.ready["ca"]}
  MQTT   {journey.ready["mqtt"]}   {journey.ready["mqtts"]}

In another terminal:
  {skep} things ls --home {home}
  {skep} watch 'dtw:site:*' --home {home}
  {skep} invoke dtw:site:pump-1 setSpeed 42 --wait --home {home}"""
    )


@contextmanager
def _fresh(home: Path | None, once: bool) -> Iterator[Path]:
    """A folder that is empty at the beginning; one nobody asked for by name is removed in the end."""
    if home is not None:
        if home.exists() and any(home.iterdir()):
            raise click.UsageError(f"{home} is not empty; the demo begins in a fresh folder")
        yield home
    elif once:
        with tempfile.TemporaryDirectory(prefix="skep-demo-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary) / "home"
    else:
        folder = Path(".demo")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield folder / "home"


def _number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else ""
