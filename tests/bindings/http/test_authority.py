"""Whoever is to trust a gateway gets its authority's certificate, and how to install it."""

import ssl
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from tests.support import skep

pytestmark = pytest.mark.anyio


async def test_certificate_comes_for_programs_and_for_phones_without_a_login(tmp_path: Path) -> None:
    async with skep(tmp_path, tls=True) as house, httpx.AsyncClient(base_url=house.https, verify=False) as client:
        pem, der = await client.get("/ca.pem"), await client.get("/ca.crt")
        standing = house.ca.read_text()

    assert pem.text == standing
    assert der.content == ssl.PEM_cert_to_DER_cert(standing)
    assert der.headers["content-type"] == "application/x-x509-ca-cert"


async def test_what_was_fetched_verifies_the_gateway(tmp_path: Path) -> None:
    async with skep(tmp_path, tls=True) as house:
        async with httpx.AsyncClient(base_url=house.https, verify=False) as stranger:
            pem = (await stranger.get("/ca.pem")).text
        context = ssl.create_default_context(cadata=pem)
        async with httpx.AsyncClient(base_url=house.https, verify=context) as client:
            assert (await client.get("/livez")).json() == {"live": True}


async def test_page_shows_the_fingerprint_to_compare(tmp_path: Path) -> None:
    async with skep(tmp_path, tls=True) as house, httpx.AsyncClient(base_url=house.https, verify=False) as client:
        page = await client.get("/ca")
        certificate = x509.load_pem_x509_certificate(house.ca.read_bytes())

    assert page.headers["content-type"].startswith("text/html")
    assert certificate.fingerprint(hashes.SHA256()).hex(":").upper() in page.text.replace("<wbr>", "")
    assert "FINGERPRINT" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


async def test_gateway_without_tls_has_no_authority_to_trust(tmp_path: Path) -> None:
    async with skep(tmp_path) as house, httpx.AsyncClient(base_url=house.http) as client:
        for path in ("/ca", "/ca.pem", "/ca.crt"):
            assert (await client.get(path)).status_code == 404
