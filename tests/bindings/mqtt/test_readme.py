"""The README's programs and topics are true."""

import re
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from bindings.mqtt.engines.amqtt.engine import AmqttEngine
from bindings.mqtt.topics import parse_topic
from tests.bindings.mqtt.support import house
from things.identity import AccountType, Role

ROOT = Path(__file__).parents[3]
README = (ROOT / "bindings/mqtt/README.md").read_text()
PASSWORD = "correct horse battery staple"


@pytest.mark.anyio
async def test_the_smallest_agent_and_consumer_work_as_they_stand(tmp_path: Path) -> None:
    agent_code, consumer_code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    async with house(tmp_path / "home", AmqttEngine) as opened:
        port = str(opened.binding.addresses[0][1])
        token = await opened.account("kitchen", AccountType.AGENT, Role.AGENT)
        await opened.account("olivia", AccountType.CONSUMER, Role.OPERATOR, PASSWORD)
        await opened.account("watch", AccountType.CONSUMER, Role.VIEWER, PASSWORD)

        def run(code: str, *given: str) -> "subprocess.Popen[str]":
            return subprocess.Popen([sys.executable, "-c", code, *given], stdout=subprocess.PIPE, text=True)

        async with opened.client("watch") as watch:
            await watch.subscribe("things/+/+/td")
            agent = run(agent_code, port, token)
            try:
                await watch.receive_on("things/kitchen/kettle/td")
                consumer = run(consumer_code, port, PASSWORD)
                output, _ = await anyio.to_thread.run_sync(lambda: consumer.communicate(timeout=60))
            finally:
                agent.kill()
                await anyio.to_thread.run_sync(agent.communicate)

    assert "things/kitchen/kettle/property/temperature 100" in output
    assert '"output":"hot"' in output


@pytest.mark.parametrize("topic", re.findall(r"`((?:agents|req)/\{[^`]*)`", README))
def test_every_topic_a_client_may_publish_to_is_one(topic: str) -> None:
    concrete = re.sub(r"\{(\w+)\}", "x", topic)

    assert str(parse_topic(concrete, "x")) == concrete
