"""The live page and its files, served as they lie here, with a policy that allows nothing from elsewhere.

The page is written as modules without a build step: each file is one idea, and the browser loads them by their imports.
Addresses in it are relative, so that it also works below a path of a proxy.
"""

import hashlib
from importlib.resources import files

from starlette.responses import Response
from starlette.types import ASGIApp

from bindings.http.exchange import Exchange
from bindings.http.routing import Documented, Endpoint, Route

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No inline script or style, nothing from other hosts: text of a TD may be hostile."""

_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_INDEX = "index.html"
_TEMPLATES = frozenset({"ca.html"})
"""Filled in by others."""


def routes() -> list[Route]:
    found = {f"/page/{name}": name for name in names() if name != _INDEX}
    return [
        Route("GET", path, _serving(name), name, public=True, documented=Documented(tag="pages", any_query=True))
        for path, name in {"/": _INDEX, **found}.items()
    ]


def names() -> list[str]:
    """The files of the page, by name."""
    found = (entry.name for entry in files(__name__).iterdir() if entry.is_file())
    return sorted(name for name in found if _suffix(name) in _MEDIA_TYPES and name not in _TEMPLATES)


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]


def _serving(name: str) -> Endpoint:
    content = (files(__name__) / name).read_bytes()
    media_type = _MEDIA_TYPES[_suffix(name)]
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'

    async def serve(exchange: Exchange) -> ASGIApp:
        # Asked for again each time, so that all modules are of one version; what is known already costs nothing.
        headers = {"content-security-policy": PAGE_POLICY, "cache-control": "no-cache", "etag": etag}
        if etag in (exchange.headers.get("if-none-match") or ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return serve
