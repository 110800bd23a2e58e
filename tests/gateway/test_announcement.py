"""What `skep run` prints leads to the gateway from where it is read."""

import re
from pathlib import Path

import pytest

from gateway.announcement import addresses, invitation, qr_code
from tests.support import skep

pytestmark = pytest.mark.anyio


async def test_claim_link_brings_its_code_along_and_trust_its_fingerprint(tmp_path: Path) -> None:
    async with skep(tmp_path, tls=True) as house:
        code = house.running.stores.authenticator.claim_code.code
        lines = list(invitation(house.running, draws=False))
        fingerprint = house.running.certificates.fingerprint().upper()

    assert lines[0] == f"trust  {house.https}/ca  (SHA-256 {fingerprint})"
    assert code
    assert lines[1].startswith(f"claim  {code}  (one time")
    assert lines[2:] == [f"       {house.https}/#claim={code}"]


async def test_claimed_gateway_invites_nobody(tmp_path: Path) -> None:
    async with skep(tmp_path, tls=True) as house:
        await house.add("owner", "consumer", "admin")
        lines = list(invitation(house.running, draws=True))
    assert [line[:6] for line in lines] == ["trust "]


async def test_nothing_is_drawn_that_leads_a_phone_to_itself(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        lines = list(invitation(house.running, draws=True))
        listed = list(addresses(house.running))
    assert not any("█" in line for line in lines)
    assert [line.split()[0] for line in listed] == ["http", "mqtt"]


def test_qr_code_is_square_and_has_a_quiet_border() -> None:
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", qr_code("https://gw.example:8443/#claim=0123456789abcdef0123456789abcdef"))
    lines = drawn.split("\n")
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == (len(lines[0]) + 1) // 2
