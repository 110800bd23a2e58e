"""Callers waiting for a final status, whatever binding they came by.

Waiting changes nothing: when the wait ends the request goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable

from things.delivery import DeliveryStatus


class Replies:
    """Futures by request id, resolved by the first final status that passes."""

    def __init__(self, known: Callable[[str], Awaitable[DeliveryStatus | None]]) -> None:
        """`known` tells the standing status of a request that may already be final."""
        self._known = known
        self._waiting: dict[str, list[asyncio.Future[DeliveryStatus]]] = {}

    def resolve(self, status: DeliveryStatus) -> None:
        """Wake everyone who waits for this request."""
        for future in self._waiting.pop(status.request_id, ()):
            if not future.done():
                future.set_result(status)

    async def final(self, request_id: str, wait_s: float) -> DeliveryStatus | None:
        """The final status, or None when the wait ends first."""
        future: asyncio.Future[DeliveryStatus] = asyncio.get_running_loop().create_future()
        # Listen first and look afterwards, so that a status between the two is not missed.
        self._waiting.setdefault(request_id, []).append(future)
        try:
            standing = await self._known(request_id)
            if standing is not None and standing.is_final:
                return standing
            async with asyncio.timeout(max(wait_s, 0)):
                return await future
        except TimeoutError:
            return None
        finally:
            waiting = self._waiting.get(request_id)
            if waiting is not None and future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self._waiting[request_id]
