"""An agent on the web thing protocol, alike to the tests that pair agents and consumers of all bindings."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.bindings.websocket.clients import WebThingClient, web_thing_client
from tests.journeys.peers import Asked
from tests.support import Account, Skep

_OPERATIONS = {
    "invokeaction": "action",
    "writeproperty": "property",
    "callrpc": "rpc",
    "cancelaction": "cancel",
}


class WebThingAgent:
    """Speaks for Things over one socket (`tests.journeys.peers.AgentPeer`)."""

    def __init__(self, client: WebThingClient) -> None:
        self._client = client

    async def describe(self, thing: str, td: dict[str, Any]) -> None:
        _checked(await self._client.request("exposething", thing, td=td))

    async def value(self, thing: str, name: str, value: Any) -> None:
        await self._tell("observeproperty", thing, name=name, value=value)

    async def event(self, thing: str, name: str, value: Any) -> None:
        await self._tell("subscribeevent", thing, name=name, data=value)

    async def asked(self) -> Asked:
        message = await self._client.next_request()
        return Asked(
            operation=_OPERATIONS[message["operation"]],
            thing=message["thingID"],
            name=message.get("name", ""),
            request_id=message["correlationID"],
            input=message.get("value", message.get("input")),
        )

    async def report(self, request_id: str, **status: Any) -> None:
        error = status.pop("error", None)
        if error is not None:
            refused = 500 if status["state"] == "failed" else 409
            status["error"] = {"status": refused, "title": "Refused", "detail": error}
        await self._client.send("response", "invokeaction", "", correlationID=request_id, status=status)

    async def _tell(self, operation: str, thing: str, **members: Any) -> None:
        correlation = str(uuid.uuid4())
        await self._client.send("notification", operation, thing, correlationID=correlation, **members)
        _checked(await self._client.answered(correlation))


@asynccontextmanager
async def web_thing_agent(skep: Skep, account: Account) -> AsyncIterator[WebThingAgent]:
    """Asked for whatever comes from the start, like the agents of other bindings."""
    async with web_thing_client(skep, account) as client:
        _checked(await client.request("exposething", "pump-1"))
        yield WebThingAgent(client)


def _checked(answer: dict[str, Any]) -> None:
    assert "error" not in answer, answer["error"]
