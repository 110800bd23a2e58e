"""The journey of the demo: a runtime of its own, agents, a consumer, an action, history, Spark; each step checked.

Every step does what a user would do, through the same doors: the runtime is a process of its own, agents come by MQTT,
the consumer by HTTPS, and commands are run as commands.
"""

import asyncio
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
from pydantic import JsonValue

from skep.agent import Agent
from skep.cli.access import SOCKET
from skep.consumer import Consumer
from skep.handlers import AgentRequest
from skep.simulation import Simulation
from things.delivery import State
from things.errors import SkepError, TimedOut, Unavailable
from things.samples import sample_td
from things.service_ids import ACCOUNTS
from things.simulated import PumpStation, RoomClimate

PUMP, ROOM, SHED = "dtw:site:pump-1", "dtw:site:room-1", "dtw:shed:pump-2"
WEATHER = "dtw:weather:seattle"
START_S = 30.0
COMMAND_S = 240.0
STOP_S = 12.0
FIRST_VALUE_S = 60.0


class StepFailed(SkepError):
    """A step did not show what it should."""

    code = "step-failed"


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what it does, in a few words, and the package it needs beyond the base installation, if any."""

    name: str
    walk: Callable[[], Awaitable[str]]
    """Does it; returns a sentence, and raises when something is not as it should be."""
    needs: str | None = None

    @property
    def is_possible(self) -> bool:
        """Whether what it needs is installed."""
        return self.needs is None or find_spec(self.needs) is not None


@dataclass(slots=True, kw_only=True)
class Journey:
    """One walk through `steps`, in order, without those that are not possible here."""

    home: Path
    ready: dict[str, Any] = field(default_factory=dict)
    password: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    rollup: list[dict[str, Any]] = field(default_factory=list)
    first_value_s: float = 0.0
    _began: float = field(default_factory=time.monotonic)
    _tokens: dict[str, str] = field(default_factory=dict)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _rows: int = 0

    def steps(self) -> list[Step]:
        return [
            Step("start the runtime", self._start),
            Step("make accounts", self._accounts),
            Step("connect simulated devices by MQTT", self._devices),
            Step("watch live values by HTTPS and SSE", self._watch),
            Step("replay a real recording", self._replay, needs="vega_datasets"),
            Step("invoke an action", self._invoke),
            Step("queue an action for an absent agent", self._queue),
            Step("look back", self._history),
            Step("seal history to Parquet", self._seal),
            Step("roll up with Spark", self._spark, needs="pyspark"),
        ]

    @asynccontextmanager
    async def walking(self) -> AsyncIterator["Journey"]:
        """While this is open the runtime and the devices live."""
        async with self._stack:
            yield self

    def consumer(self) -> Consumer:
        """Ann, an operator, over HTTPS with the runtime's own CA."""
        return Consumer(self.ready["https"], login=("ann", self.password), ca=self.ready["ca"])

    # ------------------------------------------------------------ steps

    async def _start(self) -> str:
        listeners = [f"--{name}=127.0.0.1:0" for name in ("http", "https", "mqtt", "mqtts")]
        began = time.monotonic()
        ready = self.home.with_name(f"{self.home.name}.ready.json")
        arguments = ("run", "--home", str(self.home), "--ready-file", str(ready), *listeners)
        await self._stack.enter_async_context(_process(*arguments))
        with anyio.move_on_after(START_S):
            while not ready.exists():  # noqa: ASYNC110 - a file does not announce itself
                await anyio.sleep(0.05)
        try:
            self.ready = json.loads(ready.read_text("utf-8"))
        except OSError as error:
            raise Unavailable(f"the runtime did not start; run it by hand: skep run --home {self.home}") from error
        return f"ready after {time.monotonic() - began:.1f} s at {self.ready['https']} and {self.ready['mqtts']}"

    async def _accounts(self) -> str:
        async with Consumer(socket=self.home / SOCKET) as admin:
            for name in ("site", "weather", "shed"):
                made = await admin.call(ACCOUNTS, "addClient", {"clientID": name, "type": "agent"})
                self._tokens[name] = str(_member(made, "token"))
            ann: JsonValue = {
                "clientID": "ann",
                "type": "consumer",
                "role": "operator",
                "password": self.password,
                "token": False,
            }
            await admin.call(ACCOUNTS, "addClient", ann)
        return "agents site, weather and shed; ann, an operator"

    async def _devices(self) -> str:
        agent = self._agent("site")
        simulation = Simulation(agent, {"pump-1": PumpStation(), "room-1": RoomClimate(hour=9)}, rate=20.0)
        await self._stack.enter_async_context(agent)
        await agent.connected(10)
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(simulation.run)
        await agent.flush(10)
        return "a pump station and a room publish"

    async def _watch(self) -> str:
        seen: set[str] = set()
        async with self.consumer() as consumer:
            things = {thing.id for thing in await consumer.things()}
            _check({PUMP, ROOM} <= things, f"ann does not see both Things, but {sorted(things)}")
            try:
                async with asyncio.timeout(FIRST_VALUE_S):
                    async for change in consumer.watch("dtw:site:*"):
                        self.first_value_s = self.first_value_s or time.monotonic() - self._began
                        seen.add(f"{change.thing_id}/{change.name}")
                        if len(seen) >= 4:
                            break
            except TimeoutError as error:
                raise TimedOut(f"only {len(seen)} values within {FIRST_VALUE_S:g} s") from error
        return f"first live value {self.first_value_s:.1f} s after the beginning"

    async def _replay(self) -> str:
        recording = _recording()
        played = await self._command(
            "replay",
            str(recording),
            "--agent=weather",
            "--thing=seattle",
            "--title=Seattle temperatures",
            "--unit=temp=degF",
            "--speed=max",
            f"--mqtt={self.ready['mqtt']}",
            "--json",
            token=self._tokens["weather"],
        )
        self._rows = int(_member(played, "rows"))
        _check(self._rows > 8_000, f"only {self._rows} rows of {recording.name} were played")
        async with self.consumer() as consumer:
            last = await consumer.thing(WEATHER).read("temp")
        return f"{self._rows} hourly temperatures of a year; the last one is {last} °F"

    async def _invoke(self) -> str:
        async with self.consumer() as consumer:
            began = time.monotonic()
            requested = await consumer.invoke(PUMP, "setSpeed", 60, wait_s=10)
            spent_ms = (time.monotonic() - began) * 1_000
            _check(requested.status.is_success, f"setSpeed ended {requested.state.value}")
            _check(requested.output == 60, f"setSpeed answered {requested.output!r}")
            refused = await consumer.invoke(PUMP, "cleanFilter", wait_s=10)
            _check(refused.status.error is not None, "a running pump let its filter be cleaned")
        return f"setSpeed 60 completed after {spent_ms:.0f} ms; cleanFilter was refused: {refused.status.error}"

    async def _queue(self) -> str:
        async with self._agent("shed") as agent:
            agent.expose("pump-2", sample_td("pump-station"))
            await agent.flush(10)
        async with self.consumer() as consumer:
            await _absent(consumer, SHED)
            requested = await consumer.invoke(SHED, "setSpeed", 30)
            before = await requested.refresh()
            _check(before.state is State.PENDING, f"the request is {before.state.value}, not pending")
            again = self._agent("shed")
            again.expose("pump-2", sample_td("pump-station"))

            @again.action("pump-2", "setSpeed")
            async def set_speed(speed: JsonValue, request: AgentRequest) -> JsonValue:
                return speed

            async with again:
                output = await requested.result(15)
        _check(output == 30, f"the absent agent answered {output!r}")
        return "it waited, was delivered when the agent came back, and completed"

    async def _history(self) -> str:
        async with self.consumer() as consumer:
            rows = await consumer.thing(PUMP).history("flow")
            if self._rows:
                temperatures = await consumer.thing(WEATHER).history("temp", limit=1, newest_first=True)
                _check(len(temperatures) == 1, "the recording is not in history")
        _check(len(rows) > 0, "the pump's flow is not in history")
        return f"{len(rows)} values of the pump's flow so far"

    async def _seal(self) -> str:
        sealed = await self._command("history", "seal", "--home", str(self.home), "--json")
        rows = int(_member(sealed, "rows"))
        _check(rows >= max(self._rows, 1), f"only {rows} rows were sealed")
        return f"{rows} rows in {_member(sealed, 'parts')} parts under {self.home / 'lake'}"

    async def _spark(self) -> str:
        arguments = ("spark", "rollup", "--window", "5m", "--home", str(self.home), "--json")
        self.rollup = [row for row in await self._command(*arguments) if isinstance(row, dict)]
        replayed = [row for row in self.rollup if row["thing_id"] == WEATHER]
        counted = sum(row["count"] for row in replayed)
        _check(counted == self._rows, f"the roll-up counts {counted} temperatures, {self._rows} were replayed")
        _check(any(row["thing_id"] == PUMP and row["name"] == "flow" for row in self.rollup), "no roll-up of the pump")
        series = {(row["thing_id"], row["name"]) for row in self.rollup}
        return f"{len(self.rollup)} windows of 5 minutes over {len(series)} series"

    # ------------------------------------------------------------ means

    def _agent(self, name: str) -> Agent:
        return Agent(self.ready["mqtts"], name, self._tokens[name], ca=self.ready["ca"])

    async def _command(self, *arguments: str, token: str | None = None) -> Any:
        """Run a command to its end and return its JSON; raises StepFailed with what it said."""
        async with _process(*arguments, token=token, piped=True) as process:
            try:
                async with asyncio.timeout(COMMAND_S):
                    output, said = await process.communicate()
            except TimeoutError as error:
                raise TimedOut(f"skep {arguments[0]} took longer than {COMMAND_S:g} s") from error
        if process.returncode:
            last = said.decode(errors="replace").strip().splitlines()
            raise StepFailed(f"skep {' '.join(arguments[:2])} ended with {process.returncode}: {' '.join(last[-3:])}")
        return json.loads(output)


@asynccontextmanager
async def _process(
    *arguments: str, token: str | None = None, piped: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A `skep` command in a process of its own; ended with the block, in peace if it goes in time."""
    import os

    environment = {**os.environ, **({"SKEP_TOKEN": token} if token else {})}
    where = asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "skep",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=where,
        stderr=where,
        env=environment,
    )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True), suppress(ProcessLookupError):
            if process.returncode is None:
                process.terminate()
                try:
                    async with asyncio.timeout(STOP_S):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()


async def _absent(consumer: Consumer, thing_id: str) -> None:
    """Wait until the runtime has noticed that a Thing's agent is gone."""
    with anyio.fail_after(10):
        while (await consumer.thing(thing_id).read_all()).get("online") is True:  # noqa: ASYNC110 - may be so already
            await anyio.sleep(0.05)


def _recording() -> Path:
    """Hourly temperatures of Seattle, which come with vega_datasets."""
    from importlib.resources import files

    found = Path(str(files("vega_datasets").joinpath("_data", "seattle-temps.csv")))
    if not found.exists():
        raise Unavailable("this version of vega_datasets does not bring seattle-temps.csv along")
    return found


def _member(found: Any, name: str) -> Any:
    if not isinstance(found, dict) or name not in found:
        raise StepFailed(f"the answer has no {name!r}")
    return found[name]


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise StepFailed(otherwise)
