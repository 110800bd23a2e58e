"""HTTPS to a runtime, or its control socket: one request at a time, tokens kept fresh, problems turned into errors.

Every refusal of the runtime is raised as the class of `things.errors` with its code, so that `except NotConnected`
works on both sides of the wire.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol

import httpx2
from pydantic import JsonValue

from skep.tls import client_context
from skep.urls import split_url
from things.errors import (
    BadAddress,
    ConfirmationRequired,
    SkepError,
    TokenExpired,
    TokenInvalid,
    Unauthenticated,
    Unavailable,
    error_named,
)
from things.jsontext import encode

MAX_ANSWER_BYTES = 64 * 1_048_576
EARLY_REFRESH_S = 30.0

Query = Sequence[tuple[str, str]]

_PROBLEM = "problem"


class KeptLogin(Protocol):
    """A login that outlives this program."""

    async def token(self, refresh: Callable[[str], Awaitable[JsonValue]], stale: str | None = None) -> str:
        """An access token other than `stale`; `refresh` hands in a refresh token. Raises Unauthenticated."""
        ...


class HTTPClient:
    """Requests to one runtime as one account. Enter it, then `json`, `send` or `stream`.

    Raises BadAddress for a `url` that cannot be one. Credentials: a `token`, or `login=(account, password)`, which is
    refreshed before it ends, or a `kept` login; none on the control socket (`uds`), where the kernel tells who calls.
    `tls` is a context of the caller's own, instead of `ca`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        login: tuple[str, str] | None = None,
        kept: KeptLogin | None = None,
        ca: str | Path | None = None,
        tls: ssl.SSLContext | None = None,
        uds: Path | None = None,
        timeout_s: float = 15.0,
    ) -> None:
        parts, _ = split_url(url)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise BadAddress(f"{url!r} is not an address of a runtime; expected https://HOST:PORT")
        self.url = url.rstrip("/")
        self._place = self.url if uds is None else str(uds)
        self._token, self._login, self._kept = token, login, kept
        self._fresh_until = float("inf")
        self._renewing = asyncio.Lock()
        self._refresh_token: str | None = None
        verify = (tls or client_context(ca)) if parts.scheme == "https" else False
        transport = httpx2.AsyncHTTPTransport(verify=verify, uds=None if uds is None else str(uds), trust_env=False)
        self._client = httpx2.AsyncClient(
            base_url=self.url, transport=transport, timeout=httpx2.Timeout(timeout_s), follow_redirects=False
        )

    async def __aenter__(self) -> "HTTPClient":
        await self._client.__aenter__()
        try:
            if self._token is None and self._login is not None:
                await self._log_in()
            elif self._token is None and self._kept is not None:
                self._token = await self._kept.token(self._refreshed)
        except BaseException:
            await self._client.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, traceback)

    async def json(
        self,
        method: str,
        path: str,
        body: JsonValue = None,
        *,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> JsonValue:
        """Send, and return the JSON of the answer (None for an empty one)."""
        content = None if body is None and method in ("GET", "DELETE", "HEAD") else encode(body)
        response = await self.send(method, path, content, query=query, headers=headers, timeout_s=timeout_s)
        return json_of(response)

    async def send(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        *,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> httpx2.Response:
        """Send one request; raises the error a problem document stands for, Unavailable if nobody answers."""
        await self._renew_in_time()
        token = self._token
        try:
            return await self._send(method, path, content, query, headers, timeout_s)
        except (TokenExpired, TokenInvalid):
            if self._login is None and self._kept is None:
                raise
            await self._renew(token)
            return await self._send(method, path, content, query, headers, timeout_s)

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Query = (), last_event_id: str | None = None
    ) -> AsyncIterator[AsyncIterator[httpx2.ServerSentEvent]]:
        """One open stream of server-sent events; it ends with the connection. The runtime pings every 15 s, so a
        minute of silence is a lost connection."""
        await self._renew_in_time()
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store", **self._authorization()}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        request = self._client.build_request(
            "GET", path, params=list(query), headers=headers, timeout=httpx2.Timeout(15.0, read=60.0)
        )
        try:
            response = await self._client.send(request, stream=True)
        except httpx2.TransportError as error:
            raise Unavailable(f"cannot reach {self._place}: {_reason(error)}") from error
        try:
            if response.is_error:
                await response.aread()
                raise error_of(response)
            yield self._events(response)
        finally:
            await response.aclose()

    async def _events(self, response: httpx2.Response) -> AsyncIterator[httpx2.ServerSentEvent]:
        try:
            async for event in httpx2.EventSource(response):
                yield event
        except httpx2.TransportError as error:
            raise Unavailable(f"the stream broke: {_reason(error)}") from error

    async def _send(
        self,
        method: str,
        path: str,
        content: bytes | None,
        query: Query,
        headers: Mapping[str, str] | None,
        timeout_s: float | None,
    ) -> httpx2.Response:
        given = {"Accept": "application/json", **self._authorization(), **(headers or {})}
        if content is not None:
            given.setdefault("Content-Type", "application/json")
        timeout = self._client.timeout if timeout_s is None else httpx2.Timeout(timeout_s)
        request = self._client.build_request(
            method, path, params=list(query), headers=given, content=content, timeout=timeout
        )
        try:
            response = await self._client.send(request)
        except httpx2.TransportError as error:
            raise Unavailable(f"cannot reach {self._place}: {_reason(error)}") from error
        if response.is_error:
            raise error_of(response)
        return response

    def _authorization(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}

    # ------------------------------------------------------------ staying logged in

    async def _log_in(self) -> None:
        assert self._login is not None
        account, password = self._login
        self._token = None
        answer = await self._send(
            "POST", "/authn/login", encode({"login": account, "password": password}), (), None, None
        )
        self._logged_in(json_of(answer))

    def _logged_in(self, answer: JsonValue) -> None:
        if not isinstance(answer, dict) or not isinstance(answer.get("accessToken"), str):
            raise Unauthenticated("the runtime answered the login without a token")
        self._token = str(answer["accessToken"])
        refresh, expires = answer.get("refreshToken"), answer.get("expiresIn")
        self._refresh_token = refresh if isinstance(refresh, str) else None
        lifetime_s = float(expires) if isinstance(expires, int | float) else 3_600.0
        self._fresh_until = time.monotonic() + max(lifetime_s - EARLY_REFRESH_S, lifetime_s / 2)

    async def _renew_in_time(self) -> None:
        if self._login is not None and time.monotonic() >= self._fresh_until:
            await self._renew(self._token)

    async def _renew(self, stale: str | None) -> None:
        """Refresh, or log in again; of several who notice at once only the first does."""
        async with self._renewing:
            if self._token != stale:
                return
            if self._kept is not None:
                self._token = await self._kept.token(self._refreshed, stale)
                return
            if self._refresh_token is not None:
                refresh, self._refresh_token = self._refresh_token, None
                try:
                    self._logged_in(await self._refreshed(refresh))
                    return
                except Unauthenticated:
                    pass  # the login may have ended; the password decides
            await self._log_in()

    async def _refreshed(self, refresh_token: str) -> JsonValue:
        return json_of(
            await self._send("POST", "/authn/refresh", encode({"refreshToken": refresh_token}), (), None, None)
        )


def json_of(response: httpx2.Response) -> JsonValue:
    """The JSON of an answer, None if it is empty; raises Unavailable for anything else."""
    if not response.content:
        return None
    try:
        found: JsonValue = response.json()
    except ValueError as error:
        raise Unavailable(f"{response.request.url.path} answered something that is not JSON") from error
    return found


def error_of(response: httpx2.Response) -> SkepError:
    """The error that a problem document (or a bare status) stands for."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {}
    code = problem.get("code")
    detail = problem.get("detail") or problem.get("title") or f"HTTP {response.status_code}"
    if not isinstance(code, str):
        code = _BY_STATUS.get(response.status_code, "internal")
    error = error_named(code, str(detail))
    if isinstance(error, ConfirmationRequired):
        error.token, error.valid_s = str(problem.get("confirmation", "")), float(problem.get("expiresIn", 0))
    vars(error)[_PROBLEM] = problem
    return error


def problem_of(error: SkepError) -> Mapping[str, JsonValue]:
    """The problem document an error came as; empty for one that was raised here."""
    found: Mapping[str, JsonValue] = vars(error).get(_PROBLEM, {})
    return found


_BY_STATUS = {
    400: "invalid",
    401: "unauthenticated",
    403: "forbidden",
    404: "not-found",
    409: "conflict",
    413: "too-large",
    429: "rate-limited",
    502: "agent-error",
    503: "unavailable",
    504: "timeout",
    507: "storage-full",
}


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
