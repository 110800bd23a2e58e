"""Client certificates are listed, ended one by one or with their account, and serve no other of its name."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from authn.authenticator import LocalAuthenticator
from authn.certificates import Certificates
from authn.credentials import Credential, CredentialKind
from tests.authn.installations import Clock, agent_token, claimed, consumer, installation
from things.errors import Invalid, NotFound, Unauthenticated
from things.identity import Role, ShownCertificate, shown_certificate

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authenticator(tmp_path: Path, clock: Clock) -> Iterator[LocalAuthenticator]:
    with installation(tmp_path / "home", clock) as opened:
        yield opened


@pytest.fixture
def authority(tmp_path: Path, clock: Clock) -> Certificates:
    return Certificates(tmp_path / "certs", clock)


def shown(pem: str) -> ShownCertificate:
    """A certificate as the TLS layer reports it."""
    made = x509.load_pem_x509_certificate(pem.encode())
    peer = {
        "subject": ((("commonName", made.subject.rfc4514_string().removeprefix("CN=")),),),
        "serialNumber": f"{made.serial_number:X}",
        "notBefore": made.not_valid_before_utc.strftime("%b %d %H:%M:%S %Y GMT"),
        "notAfter": made.not_valid_after_utc.strftime("%b %d %H:%M:%S %Y GMT"),
    }
    found = shown_certificate(peer)
    assert found is not None
    return found


async def issued(authenticator: LocalAuthenticator, authority: Certificates, name: str) -> ShownCertificate:
    pem, _, _ = await authenticator.certificates.issue(authority, name, None, by="root")
    return shown(pem)


def test_what_the_tls_layer_reports_is_read_as_it_is(tmp_path: Path, authority: Certificates) -> None:
    pem, _ = authority.issue_client("pump")
    path = tmp_path / "one.pem"
    path.write_text(pem)

    assert shown_certificate(ssl._ssl._test_decode_cert(str(path))) == shown(pem)  # type: ignore[attr-defined]
    assert shown_certificate(None) is None
    assert shown_certificate({"subject": ()}) is None


async def test_an_issued_certificate_is_listed_with_its_use_and_ends_alone(
    authenticator: LocalAuthenticator, authority: Certificates, clock: Clock
) -> None:
    await agent_token(authenticator, "pump")
    first, second = [await issued(authenticator, authority, "pump") for _ in range(2)]
    clock.pass_s(60)
    principal = await authenticator.by_certificate(first)
    assert (principal.account, principal.expires) == ("pump", first.not_after)
    used = {one.credential_id: one.used for one in authenticator.certificates.of("pump")}
    assert used == {first.serial: clock(), second.serial: None}

    await authenticator.certificates.revoke(first.serial, by="root")

    with pytest.raises(Unauthenticated):
        await authenticator.by_certificate(first)
    assert authenticator.standing(principal) is None
    assert (await authenticator.by_certificate(second)).account == "pump"
    assert [one.credential_id for one in authenticator.certificates.of(None)] == [second.serial]
    for serial in (first.serial, "1f"):
        with pytest.raises(NotFound):
            await authenticator.certificates.revoke(serial, by="root")


async def test_a_certificate_ends_with_its_account_and_serves_no_namesake(
    tmp_path: Path, authenticator: LocalAuthenticator, authority: Certificates, clock: Clock
) -> None:
    await claimed(authenticator)
    await consumer(authenticator, "bob", Role.VIEWER)
    certificate = await issued(authenticator, authority, "bob")
    assert await authenticator.by_certificate(certificate)
    await authenticator.administration.remove("bob", by="root")
    clock.pass_s(1)
    await consumer(authenticator, "bob", Role.MANAGER)

    with pytest.raises(Unauthenticated):
        await authenticator.by_certificate(certificate)
    authenticator.close()
    with installation(tmp_path / "home", clock) as again, pytest.raises(Unauthenticated):
        await again.by_certificate(certificate)


async def test_a_certificate_is_refused_while_its_account_is_disabled_and_once_it_expired(
    authenticator: LocalAuthenticator, authority: Certificates, clock: Clock
) -> None:
    await agent_token(authenticator, "pump")
    certificate = await issued(authenticator, authority, "pump")
    await authenticator.administration.disable("pump", by="root")
    with pytest.raises(Unauthenticated):
        await authenticator.by_certificate(certificate)
    await authenticator.administration.enable("pump", by="root")
    assert await authenticator.by_certificate(certificate)

    clock.pass_s(366 * DAY_S)

    with pytest.raises(Unauthenticated):
        await authenticator.by_certificate(certificate)


async def test_a_certificate_nobody_issued_is_refused(
    authenticator: LocalAuthenticator, authority: Certificates, clock: Clock
) -> None:
    await agent_token(authenticator, "pump")
    clock.pass_s(60)
    for name in ("pump", "nobody", "skep"):
        with pytest.raises(Unauthenticated):
            await authenticator.by_certificate(shown(authority.issue_client(name)[0]))


async def test_a_certificate_of_before_the_list_is_taken_for_the_account_it_was_issued_to_alone(
    tmp_path: Path, authority: Certificates, clock: Clock
) -> None:
    with installation(tmp_path / "home", clock) as authenticator:
        await claimed(authenticator)
        for name in ("kept", "remade"):
            await agent_token(authenticator, name)
        clock.pass_s(60)
        kept, remade = [shown(authority.issue_client(name)[0]) for name in ("kept", "remade")]
        await authenticator.administration.remove("remade", by="root")
        clock.pass_s(60)
        await agent_token(authenticator, "remade")
        # The list of this installation begins now.
        authenticator.certificates._since = clock()

        principal = await authenticator.by_certificate(kept)
        assert principal.account == "kept"
        (recorded,) = authenticator.certificates.of("kept")
        assert recorded == Credential(
            credential_id=kept.serial,
            kind=CredentialKind.CERTIFICATE,
            account_id=authenticator.register.account("kept").account_id,
            account="kept",
            created=kept.not_before + int(DAY_S * 1_000_000),
            expires=kept.not_after,
            used=clock(),
        )
        with pytest.raises(Unauthenticated):
            await authenticator.by_certificate(remade)

        await authenticator.certificates.revoke(kept.serial, by="root")
        with pytest.raises(Unauthenticated):
            await authenticator.by_certificate(kept)


async def test_a_key_that_is_none_gets_no_certificate(
    authenticator: LocalAuthenticator, authority: Certificates
) -> None:
    await agent_token(authenticator, "pump")

    with pytest.raises(Invalid):
        await authenticator.certificates.issue(authority, "pump", "nonsense", by="root")

    assert authenticator.certificates.of("pump") == []
