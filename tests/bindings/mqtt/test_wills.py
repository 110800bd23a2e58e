"""A will is judged when it fires: by the account, the credential and the rights there are then, on every engine, at
once, delayed, and after a restart. What nobody may do any more is not done because it was left as a will.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from authz.documents import RuleDocument
from bindings.mqtt.engines.native import NativeEngine, SessionStore
from bindings.mqtt.engines.seam import Limits, Listener
from runtime.clocks import wall_clock
from tests.bindings.mqtt.engines.native.peer import connect
from tests.bindings.mqtt.support import DEADLINE_S, PASSWORD, Client, House, house, lamp_house
from things.identity import AccountType, Principal, Role
from things.parsing import parsed

pytestmark = pytest.mark.anyio

ROOT = Principal(account="admin1", type=AccountType.CONSUMER, role=Role.ADMIN)
Act = Callable[[House], Awaitable[object]]
DELAY_S = 30
DELAYED: dict[str, Any] = {
    "v5": True,
    "clean": False,
    "connect_properties": {"SessionExpiryInterval": 600},
    "will_delay_s": DELAY_S,
}
"""A client that leaves a will for later; tests put the clock ahead and need not wait for it."""


class Ahead:
    """How far a clock is ahead."""

    s = 0.0

    def steady(self) -> float:
        """Monotonic seconds."""
        return time.monotonic() + self.s

    def wall(self) -> int:
        """µs UTC."""
        return wall_clock() + int(self.s * 1_000_000)

    def past_the_delay(self) -> None:
        self.s += DELAY_S + 1


@pytest.fixture
def ahead() -> Ahead:
    return Ahead()


@pytest.fixture
async def lamp_ahead(tmp_path: Path, ahead: Ahead) -> AsyncIterator[House]:
    """A house over an engine whose clock tests put ahead."""
    async with lamp_house(tmp_path / "home", partial(NativeEngine, clock=ahead.steady)) as opened:
        yield opened


def blink(account: str) -> tuple[str, bytes]:
    return f"req/{account}/action/lights/lamp/blink/bye", b""


async def connack_of(lamp: House, account: str, password: bytes, will: tuple[str, bytes, int], level: int) -> bytes:
    """The CONNACK that a client with this will gets, behind its fixed header."""
    reader, writer = await asyncio.open_connection(*lamp.binding.addresses[0])
    writer.write(connect("c", level=level, user=account, password=password, will=will))
    with anyio.fail_after(DEADLINE_S):
        answer = await reader.read(-1)
    writer.close()
    assert answer[0] == 0x20
    return answer[2 if answer[1] < 128 else 3 :]


@pytest.mark.parametrize(
    ("account", "topic", "payload", "code", "reason"),
    [
        ("lights", "agents/lights/event/lamp/touched", b"Offline", 0x99, b"JSON"),
        ("lights", "agents/lights/property/lamp/level", b"", 0x99, b"will"),
        ("lights", "agents/lights/nonsense", b"1", 0x90, b"will"),
        ("lights", "agents/lights/event/lamp/..", b"1", 0x90, b"will"),
        ("lights", "agents/other/event/lamp/touched", b"1", 0x87, b"will"),
        ("viewer1", "agents/viewer1/event/lamp/touched", b"1", 0x87, b"no Things"),
    ],
)
async def test_a_client_that_logged_in_is_told_what_is_wrong_with_its_will(
    lamp_5: House, account: str, topic: str, payload: bytes, code: int, reason: bytes
) -> None:
    token = lamp_5.tokens[account].encode()

    told = await connack_of(lamp_5, account, token, (topic, payload, 1), 5)
    assert told[1] == code
    assert told.partition(b"\x1f")[2][2:].startswith(b"the will is refused"), "a reason string"
    assert reason in told

    assert await connack_of(lamp_5, account, token, (topic, payload, 1), 4) == b"\0\5"
    wrong = await connack_of(lamp_5, account, b"wrong", (topic, payload, 1), 5)
    assert wrong == b"\0\x87\0", "who failed to log in learns nothing"


async def _disable(lamp: House) -> None:
    await lamp.authenticator.administration.disable("operator1", by="test")


async def _disable_and_enable(lamp: House) -> None:
    await _disable(lamp)
    await _revoke_token(lamp)
    await lamp.authenticator.administration.enable("operator1", by="test")


async def _remove(lamp: House) -> None:
    await lamp.authenticator.administration.remove("operator1", by="test")


async def _remove_and_add(lamp: House) -> None:
    await _remove(lamp)
    await lamp.account("operator1", AccountType.CONSUMER, Role.OPERATOR, PASSWORD)


async def _demote(lamp: House) -> None:
    await lamp.authenticator.administration.set_role("operator1", Role.VIEWER, by="test")


async def _role_none(lamp: House) -> None:
    await lamp.authenticator.administration.set_role("operator1", Role.NONE, by="test")


async def _revoke_token(lamp: House) -> None:
    for token in lamp.authenticator.register.tokens_of("operator1"):
        await lamp.authenticator.administration.revoke_token(token.credential_id, by="test")


async def _deny_by_rule(lamp: House) -> None:
    rule = parsed(
        RuleDocument,
        {"id": "no", "effect": "deny", "thing": "dtw:lights:*", "name": "blink", "accounts": ["operator1"]},
    )
    await lamp.authorizer.put_rule(rule, ROOT)


ACTS: Sequence[Act] = (
    _disable,
    _disable_and_enable,
    _remove,
    _remove_and_add,
    _demote,
    _role_none,
    _revoke_token,
    _deny_by_rule,
)


async def only_the_other_s_will_fired(lamp: House, agent: Client) -> None:
    """Somebody in good standing leaves the same will afterwards; when that has been carried out, the first one's turn
    is over."""
    async with lamp.client("manager1", will=blink("manager1")) as other:
        await other.break_off()
    assert (await agent.receive()).topic.startswith("inbox/lights/action/lamp/blink/")
    assert await lamp.twin.ledger.by_reference("manager1", "bye") is not None
    assert await lamp.twin.ledger.by_reference("operator1", "bye") is None


async def all_wills_are(lamp: House, *, left: int) -> None:
    """Return when so many wills wait."""
    engine = lamp.binding._engine
    assert isinstance(engine, NativeEngine)
    with anyio.fail_after(DEADLINE_S):
        while sum(session.will is not None for session in engine.sessions) != left:  # noqa: ASYNC110 - no word of it
            await anyio.sleep(0.02)


@pytest.mark.parametrize("act", ACTS)
async def test_a_connection_that_ends_with_its_rights_leaves_no_will(lamp: House, act: Act) -> None:
    async with lamp.client("lights") as agent:
        await agent.subscribe("inbox/lights/#")
        async with lamp.client("operator1", will=blink("operator1")) as mallory:
            await act(lamp)
            if act is _deny_by_rule:
                await mallory.break_off()
            else:
                assert await mallory.is_lost()

        await only_the_other_s_will_fired(lamp, agent)


@pytest.mark.parametrize("act", ACTS)
async def test_a_delayed_will_of_an_account_without_the_right_never_fires(
    lamp_ahead: House, ahead: Ahead, act: Act
) -> None:
    lamp = lamp_ahead
    async with lamp.client("lights") as agent:
        await agent.subscribe("inbox/lights/#")
        async with lamp.client("operator1", will=blink("operator1"), **DELAYED) as mallory:
            await mallory.break_off()
        await all_wills_are(lamp, left=1)
        await act(lamp)
        ahead.past_the_delay()
        await all_wills_are(lamp, left=0)

        await only_the_other_s_will_fired(lamp, agent)


async def test_a_delayed_will_fires_when_its_time_has_come(lamp_ahead: House, ahead: Ahead) -> None:
    lamp = lamp_ahead
    async with lamp.client("lights") as agent:
        await agent.subscribe("inbox/lights/#")
        async with lamp.client("operator1", will=blink("operator1"), **DELAYED) as client:
            await client.break_off()
        await all_wills_are(lamp, left=1)
        assert await lamp.twin.ledger.by_reference("operator1", "bye") is None

        ahead.past_the_delay()

        assert (await agent.receive()).topic.startswith("inbox/lights/action/lamp/blink/")


async def test_a_will_left_by_a_password_ends_with_the_password(lamp: House) -> None:
    by_password = Client(lamp.binding.addresses[0], "operator1", PASSWORD, will=blink("operator1"))
    async with lamp.client("lights") as agent:
        await agent.subscribe("inbox/lights/#")
        async with by_password as mallory:
            await lamp.authenticator.administration.set_password("operator1", "another long password", by="test")
            assert await mallory.is_lost()

        await only_the_other_s_will_fired(lamp, agent)


async def test_a_delayed_will_left_by_a_password_ends_with_the_password(lamp_ahead: House, ahead: Ahead) -> None:
    lamp = lamp_ahead
    by_password = Client(lamp.binding.addresses[0], "operator1", PASSWORD, will=blink("operator1"), **DELAYED)
    async with lamp.client("lights") as agent:
        await agent.subscribe("inbox/lights/#")
        async with by_password as mallory:
            await mallory.break_off()
        await all_wills_are(lamp, left=1)
        await lamp.authenticator.administration.set_password("operator1", "another long password", by="test")
        ahead.past_the_delay()
        await all_wills_are(lamp, left=0)

        await only_the_other_s_will_fired(lamp, agent)


async def test_a_will_goes_on_with_the_rights_of_a_changed_role(lamp: House) -> None:
    async with lamp.client("lights") as agent:
        await agent.subscribe("inbox/lights/#")
        async with lamp.client("operator1", will=blink("operator1")) as client:
            await lamp.authenticator.administration.set_role("operator1", Role.MANAGER, by="test")
            assert await client.is_lost()

        assert (await agent.receive()).topic.startswith("inbox/lights/action/lamp/blink/")


async def test_a_will_whose_token_merely_expired_is_carried_out(lamp: House) -> None:
    _, token = await lamp.authenticator.administration.issue_token("operator1", validity_s=1, by="test")
    lamp.tokens["operator1"] = token
    async with lamp.client("lights") as agent:
        await agent.subscribe("inbox/lights/#")
        async with lamp.client("operator1", will=blink("operator1")) as client:
            assert await client.is_lost()

        assert (await agent.receive()).topic.startswith("inbox/lights/action/lamp/blink/")


@pytest.mark.parametrize("act", [_disable, _remove_and_add, _demote, _revoke_token])
async def test_a_delayed_will_of_before_a_restart_is_judged_after_it(tmp_path: Path, ahead: Ahead, act: Act) -> None:
    home = tmp_path / "home"

    def engine(listeners: Sequence[Listener], limits: Limits) -> NativeEngine:
        return NativeEngine(listeners, limits, SessionStore(home / "mqtt-sessions.db", ahead.wall, limits))

    async with lamp_house(home, engine) as lamp:
        tokens = lamp.tokens
        for account in ("operator1", "manager1"):
            async with lamp.client(account, will=blink(account), **DELAYED) as client:
                await client.break_off()
        await all_wills_are(lamp, left=2)
    async with house(home, NativeEngine) as offline:
        await act(offline)

    ahead.past_the_delay()
    async with house(home, engine) as lamp:
        lamp.tokens = tokens
        async with lamp.client("lights") as agent:
            await agent.subscribe("inbox/lights/#")
            assert (await agent.receive()).topic.startswith("inbox/lights/action/lamp/blink/")
            await all_wills_are(lamp, left=0)
        assert await lamp.twin.ledger.by_reference("manager1", "bye") is not None
        assert await lamp.twin.ledger.by_reference("operator1", "bye") is None
