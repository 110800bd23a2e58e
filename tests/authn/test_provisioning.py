"""A device gets its token after an admin's word and a proof that it holds its key; nobody else gets it."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa

from authn import provisioning
from authn.authenticator import LocalAuthenticator
from authn.provisioning import Answer
from authn.throttle import LoginBudgets
from tests.authn.installations import HOST, Clock, agent_token, claimed, consumer, installation
from things.errors import BadAddress, Conflict, Forbidden, Invalid, NotFound, QueueFull, RateLimited, TokenInvalid
from things.identity import Role

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authenticator(tmp_path: Path, clock: Clock) -> Iterator[LocalAuthenticator]:
    with installation(tmp_path, clock) as opened:
        yield opened


class Device:
    def __init__(self, name: str, key: Ed25519PrivateKey | EllipticCurvePrivateKey | None = None) -> None:
        self.name = name
        self.key = key or Ed25519PrivateKey.generate()
        public = self.key.public_key()
        self.public = public.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ).decode()

    def sign(self, challenge: str, what: str = "provision") -> str:
        text = f"skep {what} {self.name} {challenge}".encode()
        raw = (
            self.key.sign(text)
            if isinstance(self.key, Ed25519PrivateKey)
            else self.key.sign(text, ECDSA(hashes.SHA256()))
        )
        return base64.b64encode(raw).decode()

    async def ask(self, authenticator: LocalAuthenticator, source: str = HOST) -> Answer:
        return await authenticator.provisioning.ask(self.name, self.public, source=source)

    async def prove(self, authenticator: LocalAuthenticator, challenge: str | None) -> Answer:
        return await authenticator.provisioning.ask(
            self.name, self.public, challenge=challenge, signature=self.sign(challenge or ""), source=HOST
        )


@pytest.mark.parametrize("kind", ["Ed25519", "P-256"])
async def test_a_device_is_approved_and_gets_its_token(authenticator: LocalAuthenticator, kind: str) -> None:
    device = Device("pump-7", None if kind == "Ed25519" else generate_private_key(SECP256R1()))
    asked = await device.ask(authenticator)
    assert (asked.state, asked.token) == ("pending", None)
    waiting = await device.prove(authenticator, asked.challenge)
    assert (waiting.state, waiting.token) == ("pending", None)

    await authenticator.provisioning.decide("pump-7", approve=True, by="root")
    approved = await device.prove(authenticator, waiting.challenge)

    assert approved.state == "approved"
    assert authenticator.verify(approved.token or "").account == "pump-7"
    assert sorted(approved.document()) == ["clientID", "state", "token"]


async def test_an_announced_device_needs_no_further_word(authenticator: LocalAuthenticator) -> None:
    device = Device("pump-7")
    await authenticator.provisioning.announce("pump-7", device.public, by="root")

    asked = await device.ask(authenticator)
    answer = await device.prove(authenticator, asked.challenge)

    assert authenticator.verify(answer.token or "").role == "agent"


async def test_only_who_holds_the_key_gets_the_token(authenticator: LocalAuthenticator, clock: Clock) -> None:
    device, thief = Device("pump-7"), Device("pump-7")
    await authenticator.provisioning.announce("pump-7", device.public, by="root")
    challenge = (await device.ask(authenticator)).challenge
    with pytest.raises(Forbidden):  # the right public key, another private one
        await authenticator.provisioning.ask(
            "pump-7", device.public, challenge=challenge, signature=thief.sign(challenge or ""), source=HOST
        )
    with pytest.raises(Forbidden):  # another key for the same name
        await thief.ask(authenticator)

    fresh = (await device.ask(authenticator)).challenge
    good = device.sign(fresh or "")
    assert (await device.prove(authenticator, fresh)).token
    with pytest.raises(Forbidden):  # the same proof again
        await authenticator.provisioning.ask("pump-7", device.public, challenge=fresh, signature=good, source=HOST)
    late = (await device.ask(authenticator)).challenge
    clock.pass_s(601)
    with pytest.raises(Forbidden):
        await device.prove(authenticator, late)
    with pytest.raises(Forbidden):
        await device.prove(authenticator, "a challenge of its own")


async def test_a_device_that_lost_its_token_gets_another_and_the_old_one_ends(
    authenticator: LocalAuthenticator,
) -> None:
    device = Device("pump-7")
    await authenticator.provisioning.announce("pump-7", device.public, by="root")
    first = await device.prove(authenticator, (await device.ask(authenticator)).challenge)

    second = await device.prove(authenticator, (await device.ask(authenticator)).challenge)

    assert authenticator.verify(second.token or "")
    with pytest.raises(TokenInvalid):
        authenticator.verify(first.token or "")


async def test_a_disabled_device_gets_no_token(authenticator: LocalAuthenticator) -> None:
    await claimed(authenticator)
    device = Device("pump-7")
    await authenticator.provisioning.announce("pump-7", device.public, by="root")
    await device.prove(authenticator, (await device.ask(authenticator)).challenge)
    await authenticator.administration.disable("pump-7", by="root")

    asked = await device.ask(authenticator)
    with pytest.raises(Forbidden):
        await device.prove(authenticator, asked.challenge)


async def test_a_rejected_device_is_told_and_may_ask_anew_when_forgotten(authenticator: LocalAuthenticator) -> None:
    device = Device("pump-7")
    await device.ask(authenticator)
    await authenticator.provisioning.decide("pump-7", approve=False, by="root")
    with pytest.raises(Forbidden, match="rejected"):
        await device.ask(authenticator)

    await authenticator.provisioning.forget("pump-7", by="root")

    assert (await device.ask(authenticator)).state == "pending"
    for act in (
        authenticator.provisioning.forget("nobody", by="root"),
        authenticator.provisioning.decide("nobody", approve=True, by="root"),
    ):
        with pytest.raises(NotFound):
            await act


async def test_requests_and_announcements_survive_a_restart(tmp_path: Path, clock: Clock) -> None:
    pending, announced = Device("pump-1"), Device("pump-2")
    with installation(tmp_path, clock) as first:
        await pending.ask(first)
        await first.provisioning.announce("pump-2", announced.public, by="root")
    with installation(tmp_path, clock) as second:
        assert [(one.account, one.state) for one in second.provisioning.requests()] == [
            ("pump-1", "pending"),
            ("pump-2", "approved"),
        ]
        assert (await announced.prove(second, (await announced.ask(second)).challenge)).token


async def test_a_name_that_is_taken_or_impossible_is_refused(authenticator: LocalAuthenticator) -> None:
    await consumer(authenticator, "vera")
    await agent_token(authenticator, "pump")
    for name in ("vera", "pump"):
        with pytest.raises(Conflict):
            await Device(name).ask(authenticator)
        with pytest.raises(Conflict):
            await authenticator.provisioning.announce(name, Device(name).public, by="root")
    for name in ("skep", "authn", "+", "../x", "", "A"):
        with pytest.raises(BadAddress):
            await Device(name).ask(authenticator)


async def test_keys_that_are_none_or_too_weak_are_refused(authenticator: LocalAuthenticator) -> None:
    rsa = generate_rsa(public_exponent=65_537, key_size=2_048)
    pem = rsa.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    private = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for text in ("", "x", "-----BEGIN PUBLIC KEY-----", pem.decode(), private.decode(), "A" * 2_000):
        with pytest.raises(Invalid):
            await authenticator.provisioning.ask("pump", text, source=HOST)


async def test_asking_is_limited(tmp_path: Path, clock: Clock) -> None:
    with installation(tmp_path, clock, budgets=LoginBudgets.per_minute(5)) as authenticator:
        device = Device("pump-7")
        for _ in range(5):
            await device.ask(authenticator)

        with pytest.raises(RateLimited):
            await device.ask(authenticator)
        clock.pass_s(12)
        await device.ask(authenticator)


# ---------------------------------------------------------------- a key is a credential


async def provisioned(authenticator: LocalAuthenticator, device: Device) -> Answer:
    return await device.prove(authenticator, (await device.ask(authenticator)).challenge)


async def test_a_key_that_a_thief_set_ends_with_the_tokens_of_the_account(authenticator: LocalAuthenticator) -> None:
    stolen = await agent_token(authenticator, "pump-7")
    thief = authenticator.verify(stolen)
    mallory = Device("pump-7")
    with pytest.raises(Forbidden):
        await authenticator.set_public_key(thief, mallory.public, challenge="made up", signature="AAAA")
    _, challenge = await authenticator.set_public_key(thief, mallory.public, challenge=None, signature=None)
    signed = mallory.sign(challenge or "", "public-key")
    account, _ = await authenticator.set_public_key(thief, mallory.public, challenge=challenge, signature=signed)
    assert (key := authenticator.register.key(account)) is not None
    assert key.proof == mallory.public

    for token in authenticator.register.tokens_of("pump-7"):
        await authenticator.administration.revoke_token(token.credential_id, by="root")
    await authenticator.administration.end_sessions("pump-7", by="root")

    with pytest.raises(Conflict):
        await mallory.ask(authenticator)
    assert authenticator.register.key(authenticator.register.account("pump-7")) is None


async def test_a_key_is_set_by_who_holds_it_alone(authenticator: LocalAuthenticator) -> None:
    token = await agent_token(authenticator, "pump-7")
    principal, holder = authenticator.verify(token), Device("pump-7")
    _, challenge = await authenticator.set_public_key(principal, holder.public, challenge=None, signature=None)

    with pytest.raises(Forbidden):
        await authenticator.set_public_key(
            principal, holder.public, challenge=challenge, signature=Device("x").sign(challenge or "", "public-key")
        )

    assert authenticator.register.key(authenticator.register.account("pump-7")) is None


async def test_a_replaced_key_is_good_for_nothing_and_the_new_one_is(authenticator: LocalAuthenticator) -> None:
    old, new = Device("pump-7"), Device("pump-7")
    await authenticator.provisioning.announce("pump-7", old.public, by="root")
    assert (await provisioned(authenticator, old)).token

    await authenticator.administration.update("pump-7", public_key=new.public, by="root")

    with pytest.raises(Conflict):
        await old.ask(authenticator)
    assert (await provisioned(authenticator, new)).token


async def test_a_key_ends_with_the_token_it_fetched_until_an_admin_sets_it_again(
    authenticator: LocalAuthenticator,
) -> None:
    device = Device("pump-7")
    await authenticator.provisioning.announce("pump-7", device.public, by="root")
    await provisioned(authenticator, device)
    (token,) = authenticator.register.tokens_of("pump-7")
    await authenticator.administration.revoke_token(token.credential_id, by="root")
    with pytest.raises(Conflict):
        await device.ask(authenticator)

    await authenticator.administration.update("pump-7", public_key=device.public, by="root")

    assert (await provisioned(authenticator, device)).token


@pytest.mark.parametrize("announced", [False, True])
async def test_a_name_taken_meanwhile_is_a_conflict(authenticator: LocalAuthenticator, announced: bool) -> None:
    await claimed(authenticator)
    device = Device("carol")
    if announced:
        await authenticator.provisioning.announce("carol", device.public, by="root")
        asked = None
    else:
        asked = (await device.ask(authenticator)).challenge
    await consumer(authenticator, "carol", Role.MANAGER)

    if not announced:
        with pytest.raises(NotFound):
            await authenticator.provisioning.decide("carol", approve=True, by="root")
    with pytest.raises(Conflict):
        await device.ask(authenticator)
    with pytest.raises(Conflict):
        await device.prove(authenticator, asked)


async def test_the_key_of_a_removed_agent_does_not_serve_its_namesake(
    tmp_path: Path, clock: Clock, authenticator: LocalAuthenticator
) -> None:
    device = Device("pump-7")
    await authenticator.provisioning.announce("pump-7", device.public, by="root")
    await provisioned(authenticator, device)
    await authenticator.administration.remove("pump-7", by="root")
    await agent_token(authenticator, "pump-7")

    with pytest.raises(Conflict):
        await device.ask(authenticator)
    authenticator.close()
    with installation(tmp_path, clock) as again, pytest.raises(Conflict):
        await device.ask(again)


async def test_whoever_asks_for_the_most_devices_loses_its_oldest_when_there_is_no_room(
    authenticator: LocalAuthenticator, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provisioning, "MAX_WAITING", 4)
    for number, source in enumerate(("10.0.0.66", "10.0.0.66", "10.0.0.66", "10.0.0.5")):
        await Device(f"filler-{number}").ask(authenticator, source)
        clock.now += 1

    genuine = Device("pump-7")
    assert (await genuine.ask(authenticator, "10.0.0.7")).state == "pending"
    assert [request.account for request in authenticator.provisioning.requests()] == [
        "filler-1",
        "filler-2",
        "filler-3",
        "pump-7",
    ]

    with pytest.raises(QueueFull):
        await Device("filler-9").ask(authenticator, "10.0.0.66")
    assert (await genuine.ask(authenticator, "10.0.0.7")).state == "pending"
