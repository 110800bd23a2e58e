"""`skep invoke`: ask a Thing to act, and see how it goes."""

import asyncio
import time
from contextlib import aclosing

import click
from pydantic import JsonValue

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.failures import Unsuccessful
from skep.cli.output import cell, console, print_json
from skep.consumer import Consumer
from skep.requested import Status
from things.delivery import State
from things.errors import ConfirmationRequired, TimedOut
from things.jsontext import decode
from things.times import from_datetime, rfc3339

PATIENCE_S = 60.0


@click.command(
    epilog="""\b
Examples:
  skep invoke dtw:pumps:pump-1 setSpeed 42 --wait
  skep invoke dtw:pumps:pump-1 setSpeed 10 --expires 120
  skep requests ls
"""
)
@click.argument("thing")
@click.argument("action")
@click.argument("input_", metavar="[JSON]", required=False)
@click.option("--wait", is_flag=True, help="Follow it to its end; the exit code tells whether it succeeded.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=PATIENCE_S, help="Patience of --wait.")
@click.option("--expires", type=click.FloatRange(min=0), help="Seconds it may wait for an absent agent.")
@click.option("--confirm", is_flag=True, help="Yes, do it, where a policy asks for a confirmation first.")
@access_options
def invoke(
    access: Access,
    thing: str,
    action: str,
    input_: str | None,
    wait: bool,
    timeout: float,
    expires: float | None,
    confirm: bool,
) -> None:
    """Invoke ACTION of THING with a JSON input. Without --wait it prints the request id and returns at once."""
    data = None if input_ is None else decode(input_)

    async def work(consumer: Consumer) -> Status:
        started = time.monotonic()
        try:
            requested = await consumer.invoke(thing, action, data, expires_s=expires)
        except ConfirmationRequired as asked:
            if not confirm:
                asked.detail += "; on the command line: --confirm"
                raise
            requested = await consumer.invoke(thing, action, data, expires_s=expires, confirmation=asked.token)
        if not wait or requested.status.is_final:
            return await requested.refresh()
        if access.json:
            return await requested.final(timeout)
        try:
            async with asyncio.timeout(timeout):
                async with aclosing(requested.statuses()) as statuses:
                    async for status in statuses:
                        _print_step(status, time.monotonic() - started)
        except TimeoutError:
            pass  # said below, with where the request stands
        return requested.status

    status = with_consumer(access, work, live=wait)
    if access.json:
        print_json(document(status))
    elif not wait:
        click.echo(f"{status.state.value} · request {status.request_id}")
    if wait and not status.is_success:
        if not status.is_final:
            raise TimedOut(f"request {status.request_id} is still {status.state.value} after {timeout:g} s")
        failure = status.failure()
        if failure is not None and not access.json:
            raise failure
        raise Unsuccessful


def document(status: Status) -> dict[str, JsonValue]:
    """A status as commands print it."""
    found: dict[str, JsonValue] = {"requestID": status.request_id, "state": status.state.value}
    for name, value in (
        ("callerRef", status.reference),
        ("reason", status.reason.value if status.reason else None),
        ("error", status.error),
        ("output", status.output),
        ("progress", status.progress),
        ("updated", None if status.updated is None else rfc3339(from_datetime(status.updated))),
    ):
        if value is not None:
            found[name] = value
    return found


def _print_step(status: Status, seconds: float) -> None:
    colour = {State.COMPLETED: "green", State.FAILED: "red", State.CANCELLED: "yellow"}.get(status.state, "cyan")
    parts = [f"[dim]{seconds * 1000:7.0f} ms[/]", f"[{colour}]{status.state.value}[/]"]
    if status.progress is not None:
        parts.append(f"{status.progress:g} %")
    if status.output is not None:
        parts.append(cell(status.output))
    console().print(" ".join(parts))
