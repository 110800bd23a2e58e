"""The programs in docs/sdk.md, run as they stand against a real runtime."""

import ast
import asyncio
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.skep.runtimes import PASSWORD, Site, site
from things.delivery import State

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text("utf-8")
TD: dict[str, Any] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Pump",
    "properties": {"flow": {"type": "number", "readOnly": True}, "limit": {"type": "number"}},
    "actions": {"setSpeed": {"input": {"type": "number", "maximum": 100}}},
    "events": {"alarm": {"data": {"type": "object"}}},
}


async def test_agent_consumer_and_services_of_the_page_run(tmp_path: Path) -> None:
    printed: list[str] = []
    watched = asyncio.Event()

    def note(*words: object) -> None:
        printed.append(" ".join(map(str, words)))
        if printed[-1] == "dtw:pumps:pump-1 flow 12.5":
            watched.set()

    async with site(tmp_path / "home") as runtime:
        agent = {"td": TD, "token": runtime.token}
        consumer: dict[str, Any] = {"password": PASSWORD, "print": note}
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                # The program would end here, and its Thing be away.
                tasks.start_soon(run, program("Agents") + "\n    await asyncio.Event().wait()", agent, runtime)
                async with runtime.consumer() as asking:
                    async for _ in asking.watch("dtw:pumps:pump-1/alarm", latest=True, after="0"):
                        break
                tasks.start_soon(run, program("Consumers"), consumer, runtime)
                await watched.wait()
                tasks.cancel_scope.cancel()
        async with runtime.consumer() as asking:
            await run(program("Services"), {"consumer": asking}, runtime)

    assert "dtw:pumps:pump-1 Pump ['setSpeed']" in printed
    assert "completed 42" in printed
    states = [line.split()[0] for line in printed if line.split()[0] in set(State)]
    assert states == ["completed", "pending", "delivered", "running", "completed"]
    assert any(line.endswith(" 12.5 12.5") for line in printed)


def program(heading: str) -> str:
    """The first program below a heading."""
    match = re.search(rf"^## {heading}\n.*?```python\n(.*?)```", PAGE, re.S | re.M)
    assert match is not None
    return match[1].rstrip()


async def run(text: str, names: dict[str, Any], runtime: Site) -> None:
    """Run it where its addresses lead to this runtime; `await` stands at the top level, as at Python's prompt."""
    for written, meant in (
        ("mqtts://gateway:8883", runtime.running.mqtts),
        ("https://gateway:8443", runtime.running.https),
        ("ca.pem", str(runtime.ca)),
    ):
        text = text.replace(written, str(meant))
    code = compile(text, "docs/sdk.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running: Coroutine[Any, Any, None] | None = eval(code, {"asyncio": asyncio, **names})
    if running is not None:
        await running
