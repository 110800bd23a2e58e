"""`skep models`: Thing Models, and the Thing Descriptions that are made of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.output import print_json, print_table
from skep.consumer import Consumer
from things.jsontext import decode_unique
from things.service_ids import MODELS


@click.group()
def models() -> None:
    """Thing Models, and descriptions made of them."""


@models.command("ls")
@click.argument("text", required=False)
@access_options
def list_models(access: Access, text: str | None) -> None:
    """List the Thing Models, or those with TEXT in their title or id."""

    async def work(consumer: Consumer) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        asked: dict[str, Any] = {} if text is None else {"text": text}
        while True:
            page: Any = await consumer.call(MODELS, "listModels", asked)
            found += page["items"]
            if "cursor" not in page:
                return found
            asked["cursor"] = page["cursor"]

    found = with_consumer(access, work)
    if access.json:
        print_json(found)
        return
    print_table(
        ("model", "title", "version", "stored"),
        ((one["modelID"], one["title"], one["version"], one["published"]) for one in found),
        empty="no Thing Models; store one: skep models put MODEL FILE",
    )


@models.command()
@click.argument("model")
@click.option("--version", type=click.IntRange(min=1), help="A former version.")
@click.option("--composed", is_flag=True, help="With everything that it extends and refers to.")
@access_options
def show(access: Access, model: str, version: int | None, composed: bool) -> None:
    """Print a Thing Model."""
    asked: dict[str, Any] = {"modelID": model, "composed": composed} | ({} if version is None else {"version": version})

    async def work(consumer: Consumer) -> Any:
        return await consumer.call(MODELS, "readModel", asked)

    print_json(with_consumer(access, work)["model"])


@models.command(epilog="Example: skep models put urn:example:dimmer dimmer.tm.json")
@click.argument("model")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@access_options
def put(access: Access, model: str, file: Path) -> None:
    """Store the Thing Model in FILE under the id MODEL, a URI."""
    document = decode_unique(file.read_bytes())

    async def work(consumer: Consumer) -> Any:
        return await consumer.call(MODELS, "putModel", {"modelID": model, "model": document})

    stored = with_consumer(access, work)
    if access.json:
        print_json(stored)
    else:
        click.echo(f"{stored['modelID']} · version {stored['version']}")


@models.command()
@click.argument("model")
@access_options
def rm(access: Access, model: str) -> None:
    """Remove a Thing Model; its versions stay, as those of Things do."""

    async def work(consumer: Consumer) -> Any:
        return await consumer.call(MODELS, "removeModel", {"modelID": model})

    with_consumer(access, work)


@models.command(epilog="Example: skep models make urn:example:dimmer --set SERIAL=17 --option /actions/fade --agent")
@click.argument("model")
@click.option("--id", "thing_id", help="The id of the Thing; needed if it has parts.")
@click.option(
    "--set", "values", multiple=True, metavar="NAME=VALUE", help="A placeholder; VALUE is JSON, or else text."
)
@click.option("--option", "options", multiple=True, metavar="POINTER", help="An optional affordance to take.")
@click.option("--no-options", is_flag=True, help="Take no optional affordance; without either, all are taken.")
@click.option("--agent", is_flag=True, help="For an agent to publish: without forms and security.")
@access_options
def make(
    access: Access,
    model: str,
    thing_id: str | None,
    values: Sequence[str],
    options: Sequence[str],
    no_options: bool,
    agent: bool,
) -> None:
    """Print the Thing Description of a Thing of MODEL; of a composed one a list, the Thing first and then its parts."""
    if options and no_options:
        raise click.UsageError("--option and --no-options exclude each other")
    placeholders = dict(_value(text) for text in values)

    async def work(consumer: Consumer) -> list[dict[str, Any]]:
        return await consumer.instantiate(
            model,
            thing_id=thing_id,
            placeholders=placeholders,
            options=list(options) if options or no_options else None,
            agent=agent,
        )

    made = with_consumer(access, work)
    print_json(made if len(made) > 1 else made[0])


def _value(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--set takes NAME=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
