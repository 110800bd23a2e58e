"""The certificate of the gateway's own authority, and how it is installed, for whoever is to trust this gateway."""

import html
import ssl
from functools import cache
from importlib.resources import files

from starlette.responses import Response
from starlette.types import ASGIApp

from bindings.http.context import Authority
from bindings.http.exchange import Exchange
from bindings.http.pages import PAGE_POLICY
from bindings.http.routing import Documented, Route
from things.errors import NotFound

_PEM, _DER = "application/x-pem-file", "application/x-x509-ca-cert"


def routes() -> list[Route]:
    page = Documented(tag="pages", any_query=True)
    return [
        Route("GET", "/ca", _page, "How to trust this gateway", public=True, documented=page),
        Route("GET", "/ca.pem", _pem, "The certificate of its authority (PEM)", public=True, documented=page),
        Route("GET", "/ca.crt", _der, "The same for phones and desktops (DER)", public=True, documented=page),
    ]


def _authority(exchange: Exchange) -> Authority:
    authority = exchange.context.authority()
    if authority is None:
        raise NotFound("this gateway shows a certificate that its owner installed; there is no authority to trust")
    return authority


async def _page(exchange: Exchange) -> ASGIApp:
    # Broken between bytes only, so that it can be compared line by line.
    shown = html.escape(_authority(exchange).fingerprint).replace(":", ":<wbr>")
    text = _template().replace("FINGERPRINT", shown)
    return Response(text, media_type="text/html", headers={"content-security-policy": PAGE_POLICY})


async def _pem(exchange: Exchange) -> ASGIApp:
    return Response(_authority(exchange).pem, media_type=_PEM)


async def _der(exchange: Exchange) -> ASGIApp:
    content = ssl.PEM_cert_to_DER_cert(_authority(exchange).pem)
    return Response(content, media_type=_DER, headers={"content-disposition": 'attachment; filename="skep-ca.crt"'})


@cache
def _template() -> str:
    return (files("bindings.http.pages") / "ca.html").read_text("utf-8")
