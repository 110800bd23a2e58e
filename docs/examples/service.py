"""A service: two interfaces that programs find by type and call. Needs SKEP_MQTT, SKEP_TOKEN and, for mqtts, SKEP_CA.

Its account is of type service; each interface is a Thing whose actions are the methods.
"""

import asyncio
import os
from typing import Any

from skep import Agent, AgentRequest

CONTEXT: list[Any] = ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#"}]
KEY: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 100}

desk = Agent(os.environ["SKEP_MQTT"], "desk", os.environ["SKEP_TOKEN"], ca=os.environ.get("SKEP_CA"))
desk.expose(
    "notes",
    {
        "@context": CONTEXT,
        "@type": "skep:StorageService",
        "title": "Notes",
        "actions": {
            "put": {"input": {"type": "object", "properties": {"key": KEY, "value": {}}, "required": ["key", "value"]}},
            "get": {"input": {"type": "object", "properties": {"key": KEY}, "required": ["key"]}, "safe": True},
        },
    },
)
desk.expose(
    "sums",
    {
        "@context": CONTEXT,
        "@type": "skep:AnalyticsService",
        "title": "Sums",
        "actions": {
            "mean": {
                "input": {"type": "array", "items": {"type": "number"}, "minItems": 1},
                "output": {"type": "number"},
                "safe": True,
            }
        },
    },
)
notes: dict[str, Any] = {}


@desk.action("notes", "put")
async def put(given: dict[str, Any], request: AgentRequest) -> None:
    notes[str(given["key"])] = given["value"]


@desk.action("notes", "get")
async def get(given: dict[str, Any], request: AgentRequest) -> Any:
    return notes.get(str(given["key"]))


@desk.action("sums", "mean")
async def mean(numbers: list[float], request: AgentRequest) -> float:
    return sum(numbers) / len(numbers)


async def main() -> None:
    async with desk:
        await asyncio.Event().wait()


asyncio.run(main())
