"""`skep models`, and the SDK's way to make descriptions of a model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from skep import Consumer
from tests.skep.commands import Skep
from tests.skep.runtimes import process
from things.errors import Invalid, NotFound
from things.td import ThingDescription

DIMMER = "urn:example:dimmer"
MODEL: dict[str, Any] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "@type": "tm:ThingModel",
    "title": "Dimmer {{SERIAL}}",
    "properties": {"level": {"type": "integer", "maximum": "{{MOST}}"}},
    "actions": {"fade": {}, "blink": {}},
    "tm:optional": ["/actions/fade", "/actions/blink"],
}
LAMP = {
    **MODEL,
    "title": "Lamp",
    "links": [{"rel": "tm:submodel", "href": DIMMER, "instanceName": name} for name in ("left", "right")],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("served") / "home"
    with process(home):
        yield home


@pytest.fixture
def stored(skep: Skep, home: Path, tmp_path: Path) -> tuple[str, str]:
    for model_id, document in ((DIMMER, MODEL), ("urn:example:lamp", LAMP)):
        file = tmp_path / "model.json"
        file.write_text(json.dumps(document))
        assert skep("models", "put", model_id, str(file), "--home", str(home)).code == 0
    return "--home", str(home)


def test_models_are_stored_listed_shown_and_removed(skep: Skep, stored: tuple[str, str], tmp_path: Path) -> None:
    assert {DIMMER, "urn:example:lamp"} <= {each["modelID"] for each in skep("models", "ls", "--json", *stored).json()}
    assert [each["modelID"] for each in skep("models", "ls", "DIMM", "--json", *stored).json()] == [DIMMER]
    assert skep("models", "show", DIMMER, *stored).json() == MODEL
    assert skep("models", "show", DIMMER, "--composed", "--version", "1", *stored).json()["title"] == MODEL["title"]
    assert "Dimmer" in skep("models", "ls", *stored).out

    assert skep("models", "rm", "urn:example:lamp", *stored).code == 0
    gone = skep("models", "show", "urn:example:lamp", *stored)
    assert (gone.code != 0, gone.err.startswith("not-found")) == (True, True)


def test_what_is_no_model_is_refused_and_stored_nowhere(skep: Skep, stored: tuple[str, str], tmp_path: Path) -> None:
    for number, text in enumerate(('{"title": "x"}', "{", '{"a": 1, "a": 2}')):
        file = tmp_path / f"{number}.json"
        file.write_text(text)
        said = skep("models", "put", f"urn:example:bad-{number}", str(file), *stored)
        assert said.code != 0
        assert said.err.split(":")[0] in ("td-invalid", "malformed"), said.err
    assert skep("models", "ls", "bad-", "--json", *stored).json() == []


def test_a_description_is_made_of_a_model(skep: Skep, stored: tuple[str, str]) -> None:
    values = ("--set", "SERIAL=A7", "--set", "MOST=80", "--agent")
    td = skep("models", "make", DIMMER, *values, "--option", "/actions/fade", *stored).json()
    bare = skep("models", "make", DIMMER, *values, "--no-options", *stored).json()
    lamp = skep("models", "make", "urn:example:lamp", *values, "--id", "urn:lamp", *stored).json()

    ThingDescription.of(td, agent=True)
    assert (td["title"], td["properties"]["level"]["maximum"], list(td["actions"])) == ("Dimmer A7", 80, ["fade"])
    assert not bare.get("actions")
    assert [each["id"] for each in lamp] == ["urn:lamp", "urn:lamp:left", "urn:lamp:right"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--set", "SERIAL=A7", "--agent"),
        ("--set", "SERIAL", "--agent"),
        ("--option", "/actions/fade", "--no-options"),
        ("--set", "SERIAL=A7", "--set", "MOST=80"),
    ],
)
def test_what_is_missing_for_a_description_is_said(
    skep: Skep, stored: tuple[str, str], arguments: tuple[str, ...]
) -> None:
    said = skep("models", "make", DIMMER, *arguments, *stored)

    assert said.code != 0
    assert said.out == ""
    assert said.err


def test_the_sdk_makes_descriptions(stored: tuple[str, str]) -> None:
    async def main() -> list[dict[str, Any]]:
        async with Consumer(socket=Path(stored[1]) / "control.sock") as consumer:
            with pytest.raises(NotFound):
                await consumer.instantiate("urn:example:none")
            with pytest.raises(Invalid):
                await consumer.instantiate(DIMMER, agent=True)
            return await consumer.instantiate(
                "urn:example:lamp",
                thing_id="urn:lamp",
                placeholders={"SERIAL": "1", "MOST": 5},
                options=["/actions/fade"],
                additions={"description": "d"},
                agent=True,
            )

    whole, *parts = anyio.run(main)
    assert (whole["description"], list(whole["actions"])) == ("d", ["fade"])
    assert len(parts) == 2
