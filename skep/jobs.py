"""Spark jobs as a Thing: whoever may, asks by an action, and the table comes back as a virtual Thing beside it.

Each run is a process of its own (`python -m spark.jobs.…`), so that Spark's memory is there only while something is
computed, and a cancelled run is over at once. A run that comes twice, because this program was restarted, publishes
nothing twice. One run at a time; a second one for the same table is refused, others wait for their turn.
"""

import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import IO, Any

import anyio
from pydantic import JsonValue

from skep.agent import Agent
from skep.handlers import AgentRequest
from things.durations import window_seconds
from things.errors import AgentFailed, Invalid, Rejected, TimedOut
from things.jsontext import decode
from things.times import rfc3339

log = logging.getLogger(__name__)

LIMIT_S = 3_600.0
"""A run that takes longer is ended."""
ENDING_S = 10.0
"""How long the end of a killed run is waited for."""
LAST_LINES = 20

_DAY: dict[str, JsonValue] = {
    "type": "string",
    "pattern": "^(yesterday|today|[0-9]{4}-[0-9]{2}-[0-9]{2})$",
    "description": "A day in UTC.",
}
_WINDOW: dict[str, JsonValue] = {"type": "string", "maxLength": 20, "default": "5m", "description": "30s, 5m, 1h, 1d"}
_RUN: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "table": {"type": "string"},
        "state": {"type": "string", "enum": ["completed", "failed"]},
        "from": {"type": "string"},
        "to": {"type": "string"},
        "window": {"type": "string"},
        "rows": {"type": "integer"},
        "seconds": {"type": "number"},
        "finished": {"type": "string"},
        "error": {"type": "string"},
    },
}

JOBS_TD: dict[str, JsonValue] = {
    "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#"}],
    "@type": "skep:Jobs",
    "title": "Spark jobs",
    "properties": {
        "running": {"type": "array", "items": {"type": "string"}, "readOnly": True, "title": "Tables being computed"},
        "lastRun": {**_RUN, "readOnly": True, "title": "The run that ended last"},
    },
    "actions": {
        "rollup": {
            "title": "Roll numeric readings up by window, and publish the table",
            "input": {
                "type": "object",
                "properties": {"day": _DAY, "from": _DAY, "to": _DAY, "window": _WINDOW},
                "additionalProperties": False,
            },
            "output": _RUN,
            "idempotent": True,
            "skep:deadline": "PT1H",
        },
        "recompute": {
            "title": "Compute one day anew, with what came late",
            "input": {
                "type": "object",
                "properties": {"day": {**_DAY, "default": "yesterday"}, "window": _WINDOW},
                "additionalProperties": False,
            },
            "output": _RUN,
            "idempotent": True,
            "skep:deadline": "PT1H",
        },
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where runs read and publish."""

    lake: Sequence[str]
    """`--home DIR` or `--lake URL`, as every job takes it."""
    url: str
    token: str
    ca: str | None = None
    master: str | None = None


@dataclass(slots=True)
class Jobs:
    """The Thing `thing` of an agent; declared when made, alive while the agent is."""

    agent: Agent
    place: Workplace
    thing: str = "jobs"
    _running: dict[str, str] = field(default_factory=dict)
    """Table → the request it is computed for."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.agent.expose(self.thing, JOBS_TD)
        self.agent.action(self.thing, "rollup")(self._rollup)
        self.agent.action(self.thing, "recompute")(self._recompute)

    async def _rollup(self, given: JsonValue, request: AgentRequest) -> JsonValue:
        asked: dict[str, Any] = given if isinstance(given, dict) else {}
        if "day" in asked and ("from" in asked or "to" in asked):
            raise Invalid("say a day, or from and to")
        first = _day(asked.get("day") or asked.get("from") or "yesterday")
        last = _day(asked.get("day") or asked.get("to") or asked.get("from") or "yesterday")
        if last < first:
            raise Invalid(f"{last} is before {first}")
        return await self._run(first, last, asked.get("window") or "5m", request)

    async def _recompute(self, given: JsonValue, request: AgentRequest) -> JsonValue:
        asked: dict[str, Any] = given if isinstance(given, dict) else {}
        day = _day(asked.get("day") or "yesterday")
        return await self._run(day, day, asked.get("window") or "5m", request)

    async def _run(self, first: date, last: date, window: str, request: AgentRequest) -> JsonValue:
        window_seconds(window)
        table = f"rollup-{window}"
        if table in self._running:
            raise Rejected(f"{table} is being computed for request {self._running[table]}; ask again when it is done")
        self._running[table] = request.id
        what = {"table": f"dtw:{self.agent.account}:{table}", "from": str(first), "to": str(last), "window": window}
        began = time.monotonic()
        try:
            await self._say_running()
            if self._turn.locked():
                await request.waiting()
            async with self._turn:
                arguments = ["rollup", "--window", window, "--days", str(first), str(last), "--publish", table]
                rows = await self._process(arguments, request)
            outcome: dict[str, JsonValue] = {**what, "state": "completed", "rows": rows}
        except (AgentFailed, Invalid, TimedOut) as error:
            await self._say_ended({**what, "state": "failed", "error": error.detail}, began)
            raise
        else:
            return await self._say_ended(outcome, began)
        finally:
            del self._running[table]
            await self._say_running()

    async def _say_ended(self, run: Mapping[str, JsonValue], began: float) -> JsonValue:
        whole: dict[str, JsonValue] = {
            **run,
            "seconds": round(time.monotonic() - began, 1),
            "finished": rfc3339(time.time_ns() // 1_000),
        }
        await self.agent.publish(self.thing, "lastRun", whole)
        return whole

    async def _say_running(self) -> None:
        await self.agent.publish(self.thing, "running", list[JsonValue](sorted(self._running)))

    async def _process(self, arguments: Sequence[str], request: AgentRequest) -> int:
        """Run a job to its end, handing its progress on; how many rows its table has."""
        job, *options = arguments
        options += [*self.place.lake, "--url", self.place.url, "--steps"]
        options += ["--ca", self.place.ca] if self.place.ca else []
        options += ["--master", self.place.master] if self.place.master else []
        with tempfile.TemporaryFile() as said:
            # A group of its own: ending it ends Spark's Java as well.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"spark.jobs.{job}",
                *options,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=said,
                env={**os.environ, "SKEP_TOKEN": self.place.token},
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(LIMIT_S):
                    rows = await _follow(process, request)
                    code = await process.wait()
            except TimeoutError as error:
                raise TimedOut(f"the run took more than {LIMIT_S:g} s and was ended") from error
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    with anyio.move_on_after(ENDING_S, shield=True):
                        await process.wait()
            if code != 0:
                detail = _reason(said)
                log.warning("job failed: %s", detail, extra={"request": request.id, "code": code})
                raise (Invalid if code == 2 else AgentFailed)(detail)
            return rows


async def _follow(process: asyncio.subprocess.Process, request: AgentRequest) -> int:
    rows = 0
    assert process.stdout is not None
    async for line in process.stdout:
        try:
            step = decode(line)
        except Invalid:
            continue  # something that Java prints
        if isinstance(step, dict):
            rows = int(str(step.get("rows", rows)))
            await request.progress(float(str(step.get("percent", 0))))
    return rows


def _reason(said: IO[bytes]) -> str:
    """What a job printed last about what went wrong."""
    said.seek(0)
    lines = deque((line.decode("utf-8", "replace").strip() for line in said), LAST_LINES)
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or [line for line in lines if line] or ["the job ended without a word"])[-1][:500]


def _day(text: str) -> date:
    today = datetime.now(UTC).date()
    if text in ("today", "yesterday"):
        return today - timedelta(days=text == "yesterday")
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise Invalid(f"{text[:20]!r} is not a day such as 2026-03-31") from error
