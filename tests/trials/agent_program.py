"""An agent as a program of its own, to be killed: `python -m tests.trials.agent_program URL TOKEN MEMORY EFFECTS`.

Each begun request adds its id to the file EFFECTS; with `wait` behind it handlers say that they have begun, and never
end.
"""

import asyncio
import sys
from pathlib import Path

from pydantic import JsonValue

from skep import Agent, AgentRequest

TD = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Valve",
    "actions": {"turn": {"skep:deadline": 600}, "close": {"idempotent": True, "skep:deadline": 600}},
}


async def main(url: str, token: str, memory: str, effects: Path, waits: bool) -> None:
    agent = Agent(url, "works", token, memory=memory)
    agent.expose("valve", TD)

    async def act(data: JsonValue, request: AgentRequest) -> JsonValue:
        with effects.open("a") as file:
            print(request.id, file=file, flush=True)
        if waits:
            await request.progress(50)
            await asyncio.Event().wait()
        return "done"

    for name in ("turn", "close"):
        agent.action("valve", name)(act)
    await agent.run()


if __name__ == "__main__":
    url, token, memory, effects, *more = sys.argv[1:]
    asyncio.run(main(url, token, memory, Path(effects), "wait" in more))
