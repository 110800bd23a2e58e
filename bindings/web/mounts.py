"""One ASGI application of several: those of other bindings by path prefix, one for everything else.

Here WebSockets are judged before any binding sees them: browsers open them to anybody, so pages of other origins are
refused on every path, and so are tokens in addresses.
"""

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from bindings.web.credentials import refuse_foreign_page, refuse_token_in_address
from bindings.web.fields import Fields
from bindings.web.refusals import refuse
from things.errors import SkepError
from things.places import OwnOrigin


class Mounts:
    """Dispatches by prefix (`/mqtt`, `/wot/ws` …); what has none goes to `rest`, which speaks HTTP only."""

    def __init__(self, mounts: Mapping[str, ASGIApp], rest: ASGIApp, is_own_origin: OwnOrigin) -> None:
        self._mounts = {prefix.rstrip("/").encode(): app for prefix, app in mounts.items()}
        self._first = {prefix[1:].partition(b"/")[0] for prefix in self._mounts}
        self._rest = rest
        self._is_own_origin = is_own_origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._mounted(scope)
        if scope["type"] == "websocket":
            try:
                refuse_foreign_page(scope, Fields(scope["headers"]), self._is_own_origin)
                refuse_token_in_address(scope)
            except SkepError as error:
                await receive()
                await refuse(error, scope, send)
                return
            if app is None:
                await receive()
                await send({"type": "websocket.close", "code": 1008})
                return
        await (app or self._rest)(scope, receive, send)

    def _mounted(self, scope: Scope) -> ASGIApp | None:
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        if raw_path[1:].partition(b"/")[0] not in self._first:
            return None
        for prefix, app in self._mounts.items():
            if raw_path == prefix or raw_path.startswith(prefix + b"/"):
                return app
        return None
