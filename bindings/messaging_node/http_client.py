"""Small HTTP exchanges with services outside: one client, deadlines, bounded answers, no redirects."""

import json
import ssl
from functools import cache
from typing import Any

import anyio.to_thread

from things.errors import Unavailable
from things.messages import JSONValue

TIMEOUT_S = 5.0
MAX_BYTES = 1_048_576


async def exchange(
    method: str, url: str, *, body: JSONValue = None, bearer: str | None = None
) -> tuple[int, JSONValue]:
    """Status and JSON of one exchange; raises Unavailable (504) when the service does not answer as one."""
    import httpx2  # most nodes ask nobody outside

    headers = {"accept": "application/json"}
    if bearer is not None:
        headers["authorization"] = f"Bearer {bearer}"
    context = await anyio.to_thread.run_sync(_context)
    try:
        async with (
            httpx2.AsyncClient(verify=context, timeout=TIMEOUT_S, follow_redirects=False) as client,
            client.stream(method, url, headers=headers, json=body) as answer,
        ):
            text = b""
            async for part in answer.aiter_bytes():
                text += part
                if len(text) > MAX_BYTES:
                    raise Unavailable("the service outside answers too much")
            found: Any = json.loads(text) if text else None
            return answer.status_code, found
    except (httpx2.HTTPError, ValueError) as error:
        raise Unavailable(f"the service outside does not answer: {type(error).__name__}") from error


@cache
def _context() -> ssl.SSLContext:
    """What verifies services outside: made once, and in a thread, since reading the authorities takes some 40 ms."""
    import httpx2

    return httpx2.create_ssl_context()
