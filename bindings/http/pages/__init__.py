"""The live page and its files, served as they lie here, with a policy that allows nothing from elsewhere."""

from importlib.resources import files

from starlette.responses import Response
from starlette.types import ASGIApp

from bindings.http.exchange import Exchange
from bindings.http.routing import Documented, Endpoint, Route

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No inline script or style, nothing from other hosts: text of a TD may be hostile."""

_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}


def routes() -> list[Route]:
    return [
        Route("GET", path, _serving(name, media_type), name, public=True, documented=Documented(tag="pages"))
        for path, (name, media_type) in _FILES.items()
    ]


def _serving(name: str, media_type: str) -> Endpoint:
    content = (files(__name__) / name).read_bytes()

    async def serve(exchange: Exchange) -> ASGIApp:
        headers = {"content-security-policy": PAGE_POLICY, "cache-control": "no-cache"}
        return Response(content, media_type=media_type, headers=headers)

    return serve
