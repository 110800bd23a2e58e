"""What the random lives of requests in a runtime process are about: Things, requests as the model knows them, the
process and what its clients were told."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.support import Account
from tests.trials.process import DOWN, RuntimeProcess
from things.delivery import FINAL, Reason, State
from things.times import parse_time

BRIEF_S = 1.0
ORDERS = {"burst": "burst", "acked": "until-ack", "answered": "until-response"}
KINDS = {"go": (600.0, 600.0), "brief": (BRIEF_S, 600.0), "hasty": (600.0, BRIEF_S), "level": (600.0, 600.0)}
"""What can be asked: until when it must be handed over, and then answered, in seconds. `level` is a property."""
ACTIONS = sorted(set(KINDS) - {"level"})


def _clocks(kind: str) -> dict[str, Any]:
    expires_s, deadline_s = KINDS[kind]
    return {"type": "integer", "skep:expires": expires_s, "skep:deadline": deadline_s}


TDS: dict[str, dict[str, Any]] = {
    f"dtw:works:{thing}": {
        "@context": "https://www.w3.org/2022/wot/td/v1.1",
        "title": thing,
        "skep:order": order,
        "actions": {kind: {**_clocks(kind), "input": {"type": "integer"}} for kind in ACTIONS},
        "properties": {"level": _clocks("level")},
    }
    for thing, order in ORDERS.items()
}


@dataclass(slots=True)
class Request:
    """What the model knows of one request."""

    reference: str
    thing: str
    kind: str
    number: int
    request_id: str = ""
    opened: int = 0
    """Sequence number of its first step, once the ledger was asked."""
    state: State = State.PENDING
    reason: Reason | None = None
    attempts: int = 0
    """How often it was handed over, by the ledger."""
    may_be: set[State] = field(default_factory=set)
    """Final states that were said or asked for, and nobody knows whether the runtime heard it."""

    @property
    def is_over(self) -> bool:
        return self.state in FINAL


@dataclass(slots=True)
class World:
    """The process, its clients, and what they were told; it outlasts the lives in it."""

    process: RuntimeProcess
    accounts: dict[str, Account]
    client: httpx2.AsyncClient
    told: list[tuple[int, str, str]] = field(default_factory=list)
    """Sequence number, request id and state of each status in the caller's inbox, as they came."""
    failures: list[Exception] = field(default_factory=list)
    lives: int = 0
    requests: int = 0

    async def listen(self) -> None:
        """Read the caller's inbox for good, each time from where it was."""
        headers = {"authorization": f"Bearer {self.accounts['ann'].token}", "last-event-id": "0"}
        async with httpx2.AsyncClient(trust_env=False, timeout=None) as client:
            while True:
                with suppress(*DOWN):
                    async with client.stream("GET", f"{self.process.http}/inbox", headers=headers) as reply:
                        async for line in reply.aiter_lines():
                            if line.startswith("data:"):
                                status = json.loads(line.removeprefix("data:"))
                                self.told.append((status["seq"], status["requestID"], status["state"]))
                                headers["last-event-id"] = str(status["seq"])
                await asyncio.sleep(0.02)


def due_of(request: Request, row: dict[str, Any]) -> int:
    """When its running clock ends it, by the times of its steps."""
    deadline: int | None = None
    length = round(KINDS[request.kind][1] * 1e6)
    for step in row["transitions"]:
        state, at = State(step["state"]), parse_time(step["at"])
        if state is State.DELIVERED:
            deadline = deadline or at + length
        elif state not in FINAL and state is not State.PENDING:
            deadline = at + length
    return parse_time(row["expires"]) if deadline is None else deadline
