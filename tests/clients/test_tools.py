"""Programs that people have at hand: curl, mosquitto's clients, MQTT.js and a browser's EventSource."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.bindings.http.browser import CHROMIUM, browser
from tests.clients.packages import node_modules
from tests.clients.processes import finished, running
from tests.journeys.peers import AgentPeer, mqtt_agent
from tests.support import PUMP, Account, Skep, skep

pytestmark = pytest.mark.anyio

PUMP_1 = "dtw:works:pump-1"
FLOW = "things/works/pump-1/property/flow"


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Skep]:
    async with skep(tmp_path, tls=True) as running_:
        yield running_


@pytest.fixture
async def agent(runtime: Skep) -> AsyncIterator[AgentPeer]:
    async with mqtt_agent(runtime, await runtime.add("works", "agent")) as peer:
        await peer.describe("pump-1", PUMP)
        await peer.value("pump-1", "flow", 12.5)
        yield peer


@pytest.fixture
async def ann(runtime: Skep) -> Account:
    return await runtime.add("ann")


# ---------------------------------------------------------------- curl


async def curl(runtime: Skep, account: Account, *arguments: str) -> tuple[int, str, str]:
    header = f"Authorization: Bearer {account.token}"
    return await finished("curl", "-sS", "--noproxy", "*", "--cacert", str(runtime.ca), "-H", header, *arguments)


@needs("curl")
async def test_curl_reads_writes_and_invokes(runtime: Skep, agent: AgentPeer, ann: Account) -> None:
    thing = f"{runtime.https}/things/{PUMP_1}"
    status = ("-o", "/dev/null", "-w", "%{http_code}")

    _, value, _ = await curl(runtime, ann, f"{thing}/properties/flow")
    _, found, _ = await curl(runtime, ann, "-G", f"{runtime.https}/things", "--data-urlencode", "filter=flow > 12")
    code, none, _ = await curl(runtime, ann, *status, f"{thing}/properties/speed")
    _, created, _ = await curl(
        runtime, ann, "-d", "3", f"{thing}/actions/setSpeed", "-H", "Content-Type: application/json"
    )
    _, forbidden, _ = await curl(runtime, ann, *status, "-X", "PUT", "-d", "3", f"{thing}/properties/target")
    wrong = Account(name="ann", token="wrong")
    _, refused, _ = await curl(runtime, wrong, *status, f"{thing}/properties/flow")

    assert json.loads(value) == 12.5
    assert [td["id"] for td in json.loads(found)] == [PUMP_1]
    assert json.loads(created)["status"] == "pending"
    assert (code, none, refused) == (0, "404", "401")
    assert forbidden in ("400", "403", "415")


@needs("curl")
async def test_curl_follows_an_event_stream(runtime: Skep, agent: AgentPeer, ann: Account) -> None:
    arguments = (
        *("curl", "-sSN", "--noproxy", "*", "--cacert", str(runtime.ca), "-H", f"Authorization: Bearer {ann.token}"),
        *("-H", "Accept: text/event-stream", f"{runtime.https}/things/{PUMP_1}/properties/flow"),
    )
    async with running(*arguments) as process:
        assert await process.line() == ": ok"
        await agent.value("pump-1", "flow", 13.5)
        lines: list[str] = []
        while len(lines) < 3:
            text = await process.line()
            lines += [text] if text else []

    assert lines[0].startswith("event: flow") or "event: flow" in lines
    assert "data: 13.5" in lines


# ---------------------------------------------------------------- mosquitto


@needs("mosquitto_sub")
@pytest.mark.mosquitto
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
async def test_mosquitto_sub_gets_the_latest_value_and_the_next(
    runtime: Skep, agent: AgentPeer, ann: Account, version: str
) -> None:
    host, port = runtime.mqtt_address
    arguments = ("-h", host, "-p", str(port), "-u", "ann", "-P", ann.token, "-V", version, "-q", "1", "-v")
    async with running("mosquitto_sub", *arguments, "-t", "things/works/+/property/flow") as process:
        latest = await process.line()
        await agent.value("pump-1", "flow", 14)
        following = await process.line()

    assert (latest, following) == (f"{FLOW} 12.5", f"{FLOW} 14")


@needs("mosquitto_pub")
@pytest.mark.mosquitto
async def test_mosquitto_pub_speaks_for_a_thing_and_is_refused_for_others(runtime: Skep) -> None:
    lab = await runtime.add("lab", "agent")
    host, port = runtime.mqtt_address
    base = ("mosquitto_pub", "-h", host, "-p", str(port), "-u", "lab", "-V", "mqttv5", "-q", "1")

    described, _, _ = await finished(*base, "-P", lab.token, "-t", "agents/lab/td/scale", "-m", json.dumps(PUMP))
    said, _, _ = await finished(*base, "-P", lab.token, "-t", "agents/lab/property/scale/flow", "-m", "7.5")
    _, _, foreign = await finished(*base, "-P", lab.token, "-t", "agents/works/property/pump-1/flow", "-m", "1")
    wrong, _, why = await finished(*base, "-P", "wrong", "-t", "agents/lab/property/scale/flow", "-m", "1")
    async with httpx2.AsyncClient(base_url=runtime.http, headers={"Authorization": f"Bearer {lab.token}"}) as http:
        reply = await http.get("/things/dtw:lab:scale/properties/flow")

    assert (described, said) == (0, 0)
    assert reply.json() == 7.5
    assert "Not authorized" in foreign
    assert wrong != 0
    assert why


# ---------------------------------------------------------------- MQTT.js

_MQTT_JS = """
const mqtt = require("mqtt");
const [url, account, token] = process.argv.slice(1);
const client = mqtt.connect(url, { username: account, password: token, protocolVersion: 5, reconnectPeriod: 0 });
client.on("error", (error) => { console.log(JSON.stringify({ error: error.message })); process.exit(1); });
client.on("message", (topic, payload) => console.log(JSON.stringify({ topic, value: JSON.parse(String(payload)) })));
client.on("connect", async () => {
    await client.subscribeAsync(["things/works/+/property/#", `inbox/${account}/#`], { qos: 1 });
    await client.publishAsync(`req/${account}/action/works/pump-1/setSpeed/one`, "3", { qos: 1 });
});
"""


@pytest.mark.node
@pytest.mark.parametrize("transport", ["mqtt", "ws"])
async def test_mqtt_js_watches_and_invokes_over_tcp_and_websocket(
    runtime: Skep, agent: AgentPeer, ann: Account, transport: str
) -> None:
    url = runtime.mqtt if transport == "mqtt" else f"ws{runtime.http.removeprefix('http')}/mqtt"
    env = {"NODE_PATH": str(node_modules())}
    command = ("node", "-e", _MQTT_JS, "--", url, "ann", ann.token)
    async with running(*command, env=env) as process:
        messages: list[dict[str, Any]] = []
        while not any(message.get("topic", "").endswith("/one") for message in messages):
            messages.append(json.loads(await process.line()))
        with anyio.fail_after(30):
            asked = await agent.asked()

    assert {"topic": FLOW, "value": 12.5} in messages
    assert (asked.operation, asked.name, asked.input) == ("action", "setSpeed", 3)


@pytest.mark.node
async def test_mqtt_js_with_a_wrong_token_is_not_let_in(runtime: Skep, ann: Account) -> None:
    env = {"NODE_PATH": str(node_modules())}
    async with running("node", "-e", _MQTT_JS, "--", runtime.mqtt, "ann", "wrong", env=env) as process:
        said = json.loads(await process.line())

    assert "authorized" in said["error"].lower()


# ---------------------------------------------------------------- a browser


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
async def test_a_browsers_event_source_follows_a_property_with_a_ticket(
    runtime: Skep, agent: AgentPeer, ann: Account, chromium: str
) -> None:
    stream = f"/things/{PUMP_1}/properties/flow"
    async with httpx2.AsyncClient(base_url=runtime.http, headers={"Authorization": f"Bearer {ann.token}"}) as http:
        reply = await http.post("/authn/ticket", json={"stream": stream})
    href = reply.json()["href"]

    async with browser(chromium) as page:
        await page.open(runtime.http)
        await page.evaluate(
            f"window.told = []; window.source = new EventSource({json.dumps(href)});"
            "source.addEventListener('flow', (event) => told.push(JSON.parse(event.data)));"
            "new Promise((opened, failed) => {"
            " source.onopen = () => opened(true); source.onerror = () => failed('closed'); })"
        )
        await agent.value("pump-1", "flow", 15)
        await page.until("told.length")
        told = await page.evaluate("told")

    assert told == [15]
