"""History pages as an Arrow stream, made in a child process: the runtime itself stays small without pyarrow.

Run as a module, it reads a JSON page of history from standard input and writes the stream to standard output. Like the
lake's files, the stream says in its metadata which gateway the rows are of.
"""

import asyncio
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any, BinaryIO

from pydantic_core import from_json

from things.errors import Unavailable
from things.jsontext import encode
from things.lake import GATEWAY_KEY
from things.times import parse_time

ARROW = "application/vnd.apache.arrow.stream"
DEADLINE_S = 30.0


@cache
def has_arrow() -> bool:
    """Whether pyarrow is installed."""
    return find_spec("pyarrow") is not None


async def arrow_stream(page: Mapping[str, Any]) -> bytes:
    """The items of a page as an Arrow IPC stream. Raises Unavailable when the child fails or takes too long."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            written, _ = await child.communicate(encode(page))
    except TimeoutError as error:
        raise Unavailable("writing Arrow took too long; ask for less") from error
    finally:
        if child.returncode is None:
            child.kill()
    if child.returncode != 0:
        raise Unavailable("Arrow could not be written")
    return written


def write(page: Mapping[str, Any], to: BinaryIO) -> None:
    """`value` is the JSON text, `number` the value where it is one; `sourceTime` is null where it is `created`."""
    import pyarrow as pa

    items = page["items"]
    at = pa.timestamp("us", tz="UTC")
    columns = {
        "rowID": pa.array([item["rowID"] for item in items], pa.int64()),
        "thingID": pa.array([item["thingID"] for item in items], pa.string()).dictionary_encode(),
        "kind": pa.array([item["kind"] for item in items], pa.string()).dictionary_encode(),
        "name": pa.array([item["name"] for item in items], pa.string()).dictionary_encode(),
        "value": pa.array([encode(item["value"]).decode() for item in items], pa.string()),
        "number": pa.array([_number(item["value"]) for item in items], pa.float64()),
        "created": pa.array([parse_time(item["created"]) for item in items], pa.int64()).cast(at),
        "received": pa.array([parse_time(item["received"]) for item in items], pa.int64()).cast(at),
        "quality": pa.array([item["quality"] for item in items], pa.int32()),
        "tdVersion": pa.array([item["tdVersion"] for item in items], pa.int64()),
        "sourceTime": pa.array([_micros(item.get("sourceTime")) for item in items], pa.int64()).cast(at),
    }
    table = pa.table(columns).replace_schema_metadata({GATEWAY_KEY: page["gateway"]})
    with pa.ipc.new_stream(to, table.schema) as writer:
        writer.write_table(table)


def _micros(text: str | None) -> int | None:
    return None if text is None else parse_time(text)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


if __name__ == "__main__":
    write(from_json(sys.stdin.buffer.read()), sys.stdout.buffer)
