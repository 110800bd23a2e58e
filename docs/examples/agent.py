"""An agent: it speaks for one Thing. Needs SKEP_MQTT, SKEP_TOKEN and, for mqtts, SKEP_CA."""

import asyncio
import os

from skep import Agent, AgentRequest

agent = Agent(os.environ["SKEP_MQTT"], "greenhouse", os.environ["SKEP_TOKEN"], ca=os.environ.get("SKEP_CA"))
agent.expose(
    "bed-1",
    {
        "@context": "https://www.w3.org/2022/wot/td/v1.1",
        "title": "Vegetable bed",
        "properties": {"moisture": {"type": "number", "unit": "percent", "readOnly": True, "observable": True}},
        "actions": {"water": {"input": {"type": "number", "unit": "L", "maximum": 50}}},
    },
)


@agent.action("bed-1", "water")
async def water(litres: float, request: AgentRequest) -> float:
    await request.progress(50)
    await agent.publish("bed-1", "moisture", 60 + litres)
    return litres


async def main() -> None:
    async with agent:
        await agent.publish("bed-1", "moisture", 41.5)
        await asyncio.Event().wait()


asyncio.run(main())
