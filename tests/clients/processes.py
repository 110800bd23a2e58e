"""Other people's programs as child processes that speak in lines."""

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from tests.clients.packages import HERE, node_modules
from tests.support import Skep

WITHIN_S = 30.0


class Process:
    """A running program; what it writes is read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        with anyio.fail_after(WITHIN_S):
            text = await self._process.stdout.readline()
        if not text:
            assert self._process.stderr is not None
            raise AssertionError((await self._process.stderr.read()).decode()[-2_000:])
        return text.decode().rstrip("\n")

    async def lines(self) -> AsyncIterator[str]:
        """What it writes, until it ends."""
        assert self._process.stdout is not None
        async for text in self._process.stdout:
            yield text.decode().rstrip("\n")

    async def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")
        await self._process.stdin.drain()


@asynccontextmanager
async def running(*command: str, env: dict[str, str] | None = None) -> AsyncIterator[Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **(env or {})}, limit=4_194_304
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def finished(*command: str, within_s: float = WITHIN_S) -> tuple[int, str, str]:
    """Run a program to its end: exit code, output, complaints."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        with anyio.fail_after(within_s):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode(), err.decode()


class NodeWot:
    """A Thing consumed by node-wot; `told` holds what observed properties and events brought."""

    def __init__(self, process: Process) -> None:
        self.told: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._process = process
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, do: str, name: str = "", value: Any = None, **options: Any) -> Any:
        """One call of the Scripting API; raises RuntimeError with what node-wot says."""
        id_ = next(self._ids)
        answer = self._answers[id_] = asyncio.get_running_loop().create_future()
        asked = {"id": id_, "do": do, "name": name, "value": value, "options": options}
        if value is None:
            del asked["value"]
        await self._process.say(json.dumps(asked))
        with anyio.fail_after(WITHIN_S):
            return await answer

    async def next(self) -> tuple[str, Any]:
        with anyio.fail_after(WITHIN_S):
            return await self.told.get()

    async def listen(self) -> None:
        async for text in self._process.lines():
            if not text.startswith("{"):
                continue  # node-wot logs there, too
            message = json.loads(text)
            if "told" in message:
                self.told.put_nowait((message["told"], message.get("value", message.get("error"))))
            elif (answer := self._answers.get(message["id"])) is not None and not answer.done():
                if "error" in message:
                    answer.set_exception(RuntimeError(message["error"]))
                else:
                    answer.set_result(message.get("value"))


@asynccontextmanager
async def node_wot(runtime: Skep, td: dict[str, Any], **credentials: str) -> AsyncIterator[NodeWot]:
    """Consume a Thing as the TD says, with credentials for its id."""
    env = {"NODE_PATH": str(node_modules()), "NODE_EXTRA_CA_CERTS": str(runtime.ca)}
    async with running("node", str(HERE / "driver.cjs"), env=env) as process:
        await process.say(json.dumps({"td": td, "credentials": {td["id"]: credentials}}))
        while not (first := await process.line()).startswith("{"):
            continue
        opened = json.loads(first)
        assert opened.get("value") == td["id"], opened
        async with anyio.create_task_group() as tasks:
            client = NodeWot(process)
            tasks.start_soon(client.listen)
            yield client
            tasks.cancel_scope.cancel()
