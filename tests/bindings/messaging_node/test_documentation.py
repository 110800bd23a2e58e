"""What the documentation says of the node: its example runs, its tables are complete."""

import asyncio
import os
import re
import sys
from pathlib import Path

import anyio
import httpx
import jsonschema_rs
import pytest

from bindings.messaging_node.policies import METHODS
from skep.cli import main
from tests.bindings.messaging_node.support import client
from tests.support import Skep, skep
from things.envelopes import CODES, read

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "messaging-node.md").read_text("utf-8")


async def test_the_example_runs(tmp_path: Path) -> None:
    async with skep(tmp_path, tls=True) as house:
        greenhouse, ann = await house.add("greenhouse", "agent"), await house.add("ann")
        environment = {
            **os.environ,
            "SKEP_URL": house.https,
            "SKEP_CA": str(house.ca),
            "SKEP_MQTT": house.mqtt,
            "SKEP_TOKEN": greenhouse.token,
            "SKEP_CONSUMER_TOKEN": ann.token,
        }
        example = await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "docs" / "examples" / "hyperties.py"),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )
        with anyio.fail_after(60):
            said, _ = await example.communicate()

    assert said.decode().splitlines() == [
        "room {'occupied': False, 'people': []} sensor 20.5",
        "said welcome, ann",
        "occupied True",
        "people ['ann']",
        "temperature 21.5",
    ]


def test_every_response_code_is_documented() -> None:
    written = set(re.findall(r"\d{3}", PAGE.partition("| code | when |")[2].partition("\n\n")[0]))
    assert {str(code) for code in CODES.values()} - written == set()


def test_policy_methods_are_documented() -> None:
    assert not [method for method in METHODS if f"`{method}" not in PAGE]


async def test_channels_are_described_beside_the_streams(closed_house: Skep) -> None:
    ann = await closed_house.add("ann")
    headers = {"authorization": f"Bearer {ann.token}"}
    async with httpx.AsyncClient(base_url=closed_house.http, headers=headers) as http:
        channels = (await http.get("/asyncapi.json")).json()["channels"]

    assert (channels["node"]["address"], channels["nodeStub"]["address"]) == ("/ws", "/stub/connect")
    assert "stream" in channels


async def test_every_channel_and_message_of_the_node_is_described_with_an_example(closed_house: Skep) -> None:
    async with httpx.AsyncClient(base_url=closed_house.http) as http:
        streams = (await http.get("/asyncapi.json")).json()
        paths = (await http.get("/openapi.json")).json()["paths"]

    server = streams["servers"]["websocket"]
    assert (server["protocol"], server["host"]) == ("ws", closed_house.http.partition("://")[2])
    for name in ("node", "nodeStub"):
        for message in streams["channels"][name]["messages"].values():
            check = jsonschema_rs.validator_for(message["payload"])
            for example in message["examples"]:
                check.validate(example["payload"])
                read(example["payload"])
        for operation in (streams["operations"][f"send-{name}"], streams["operations"][f"receive-{name}"]):
            for reference in operation["messages"]:
                assert reference["$ref"].rpartition("/")[2] in streams["channels"][name]["messages"]
    assert sorted(paths["/node/{address}"]) == ["delete", "get", "parameters", "post", "put"]
    assert sorted(paths["/node/messages"]) == ["post"]
    assert "/things" in paths


async def test_the_command_lists_routes(house: Skep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with client(house) as one:
        await one.allocate()
        assert await anyio.to_thread.run_sync(main, ["node", "routes", "--home", str(tmp_path)]) == 0

        said = capsys.readouterr().out
        assert one.runtime in said
        assert "Allocation" in said
        assert one.token not in said
