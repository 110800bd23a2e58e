"""`skep requests`: actions and property writes with their whole life."""

import click

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.moments import Moment
from skep.cli.output import print_json, print_table, short_time
from skep.consumer import Consumer
from things.delivery import State
from things.messages import JSONValue
from things.times import parse_time, to_datetime


@click.group()
def requests() -> None:
    """Requests and how they went."""


@requests.command("ls", epilog="Example: skep requests ls --state pending --home ./site")
@click.option("--thing", help="Only of this Thing.")
@click.option("--caller", help="Only of this account.")
@click.option("--state", type=click.Choice([state.value for state in State]), help="Only in this state.")
@click.option("--from", "start", type=Moment(), help="Only since.")
@click.option("--to", "end", type=Moment(), help="Only before.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most so many.")
@access_options
def list_requests(
    access: Access,
    thing: str | None,
    caller: str | None,
    state: str | None,
    start: str | None,
    end: str | None,
    limit: int,
) -> None:
    """List requests, newest first."""

    async def work(consumer: Consumer) -> list[dict[str, JSONValue]]:
        since, until = (None if text is None else to_datetime(parse_time(text)) for text in (start, end))
        return await consumer.requests(limit + 1, thing_id=thing, caller=caller, state=state, start=since, end=until)

    found = with_consumer(access, work)
    if len(found) > limit:
        del found[limit:]
        click.echo(f"these are the newest {limit}; --limit shows more", err=True)
    if access.json:
        print_json(found)
        return
    print_table(
        ("request", "thing", "name", "input", "state", "why", "caller", "created"),
        (
            (
                item.get("requestID"),
                item.get("thingID"),
                item.get("name"),
                item.get("input"),
                item.get("state"),
                item.get("reason") or item.get("error"),
                item.get("caller"),
                short_time(item.get("created")),
            )
            for item in found
        ),
        empty="no requests",
    )


@requests.command()
@click.argument("request_id")
@access_options
def show(access: Access, request_id: str) -> None:
    """Show one request, step by step."""

    async def work(consumer: Consumer) -> dict[str, JSONValue]:
        return await consumer.request_document(request_id)

    found = with_consumer(access, work)
    if access.json:
        print_json(found)
        return
    steps = found.pop("transitions", None)
    print_table(("", ""), ((name, value) for name, value in found.items() if value is not None))
    rows = [item for item in steps if isinstance(item, dict)] if isinstance(steps, list) else []
    print_table(
        ("seq", "at", "state", "why"), ((r.get("seq"), r.get("at"), r.get("state"), r.get("reason")) for r in rows)
    )


@requests.command()
@click.argument("request_id")
@access_options
def cancel(access: Access, request_id: str) -> None:
    """Take a request back: removed while it waits, passed on to the agent once that has it."""

    async def work(consumer: Consumer) -> dict[str, JSONValue]:
        await consumer.cancel(request_id)
        return await consumer.request_document(request_id)

    found = with_consumer(access, work)
    if access.json:
        print_json(found)
    else:
        click.echo(f"{found.get('state')} · request {request_id}")
