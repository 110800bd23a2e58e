"""The local authority: made once, served, renewed without dropping connections, and strict about who reads its keys."""

import asyncio
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

import authn.certificates
from authn.certificates import Certificates
from authn.name_constraints import may_certify
from authn.served import ServerFiles
from tests.pairs import make_pair, own_files, shown_serial
from things.errors import BadAddress, ConfigInvalid
from things.identity import shown_certificate

pytestmark = pytest.mark.anyio

DAY_US = 86_400_000_000


class Clock:
    def __init__(self) -> None:
        import time

        self.now = time.time_ns() // 1_000

    def __call__(self) -> int:
        return self.now


class Listener:
    """A TLS server that answers each line with the client's common name."""

    def __init__(self, certificates: Certificates) -> None:
        self._context = certificates.server_context()

    async def __aenter__(self) -> "Listener":
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown = shown_certificate(writer.get_extra_info("peercert"))
        name = shown.name if shown is not None else None
        while await reader.readline():
            writer.write(f"{name}\n".encode())
        writer.close()


async def ask(port: int, context: ssl.SSLContext) -> tuple[str, str]:
    """The answer to one line, and the serial number of the certificate that was served."""
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        writer.write(b"?\n")
        answer = (await reader.readline()).decode().strip()
        serial = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        return answer, serial


async def test_a_client_that_trusts_the_authority_connects_and_others_do_not(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certs", Clock())

    async with Listener(certificates) as listener:
        assert (await ask(listener.port, certificates.client_context()))[0] == "None"
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(listener.port, ssl.create_default_context())


async def test_a_client_certificate_names_its_account(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certs", Clock())
    pem, key = certificates.issue_client("pump-1")
    assert key is not None
    (tmp_path / "client.pem").write_text(pem + key)
    context = certificates.client_context()
    context.load_cert_chain(tmp_path / "client.pem")

    async with Listener(certificates) as listener:
        assert (await ask(listener.port, context))[0] == "pump-1"


async def test_a_client_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certs", Clock())
    foreign = Certificates(tmp_path / "foreign", Clock())
    pem, key = foreign.issue_client("pump-1")
    assert key is not None
    (tmp_path / "client.pem").write_text(pem + key)
    context = certificates.client_context()
    context.load_cert_chain(tmp_path / "client.pem")

    async with Listener(certificates) as listener:
        try:
            answer = (await ask(listener.port, context))[0]
        except (ssl.SSLError, OSError):
            answer = ""
        assert answer == ""


async def test_an_expired_client_certificate_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    certificates = Certificates(tmp_path / "certs", clock)
    clock.now -= 400 * DAY_US
    pem, key = certificates.issue_client("pump-1")
    assert key is not None
    (tmp_path / "client.pem").write_text(pem + key)
    context = certificates.client_context()
    context.load_cert_chain(tmp_path / "client.pem")

    async with Listener(certificates) as listener:
        try:
            answer = (await ask(listener.port, context))[0]
        except (ssl.SSLError, OSError):
            answer = ""
        assert answer == ""


async def test_a_renewed_one_is_shown_to_new_connections_and_open_ones_go_on(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certs", Clock())
    async with Listener(certificates) as listener, asyncio.timeout(30):
        context = certificates.client_context()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", listener.port, ssl=context, server_hostname="localhost"
        )
        before = writer.get_extra_info("peercert")["serialNumber"]

        assert certificates.prepare(["localhost", "gw.lan"])
        certificates.serve()

        assert (await ask(listener.port, certificates.client_context()))[1] != before
        writer.write(b"?\n")
        assert await reader.readline() == b"None\n"
        writer.close()


async def test_tls_1_1_is_refused(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certs", Clock())

    assert certificates.server_context().minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_second_start_keeps_authority_and_certificate(tmp_path: Path) -> None:
    first = Certificates(tmp_path / "certs", Clock())
    served = first.files.certificate.read_bytes()

    second = Certificates(tmp_path / "certs", Clock())

    assert second.fingerprint() == first.fingerprint()
    assert second.files.certificate.read_bytes() == served


def test_a_new_name_makes_a_new_certificate_under_the_same_authority(tmp_path: Path) -> None:
    first = Certificates(tmp_path / "certs", Clock())
    served = first.files.certificate.read_bytes()

    second = Certificates(tmp_path / "certs", Clock(), names=["192.168.7.7", "gw.lan"])

    assert second.fingerprint() == first.fingerprint()
    assert second.files.certificate.read_bytes() != served


def test_the_certificate_is_renewed_at_two_thirds_of_its_life(tmp_path: Path) -> None:
    clock = Clock()
    certificates = Certificates(tmp_path / "certs", clock)
    before = certificates.expires()

    clock.now += 200 * DAY_US
    early = certificates.prepare()
    clock.now += 60 * DAY_US
    late = certificates.prepare()

    assert (early, late) == (False, True)
    assert certificates.expires() > before


def test_own_certificates_are_served_watched_and_not_renewed(tmp_path: Path) -> None:
    clock = Clock()
    other = Certificates(tmp_path / "other", clock)
    certificates = Certificates(tmp_path / "certs", clock, own=other.files)
    assert certificates.warnings() == []

    clock.now += 340 * DAY_US
    soon = certificates.warnings()
    clock.now += 40 * DAY_US
    ended = certificates.warnings()

    assert certificates.prepare() is False
    assert [text.split()[3] for text in soon] == ["expires"]
    assert [text.split()[3] for text in ended] == ["expired"]


async def test_another_own_certificate_is_shown_whatever_kind_its_key_is_of(tmp_path: Path) -> None:
    files = own_files(tmp_path / "own")
    make_pair(files)
    certificates = Certificates(tmp_path / "certs", Clock(), own=files)

    async with Listener(certificates) as listener:
        for is_rsa in (True, False, True):
            made = make_pair(files, is_rsa=is_rsa)
            certificates.read()
            certificates.serve()

            assert await shown_serial(listener.port) == made.serial_number
    assert certificates.expires() == made.not_valid_after_utc


async def test_a_pair_that_is_being_replaced_is_waited_for(tmp_path: Path) -> None:
    files, other = own_files(tmp_path / "own"), own_files(tmp_path / "other")
    make_pair(files)
    certificates = Certificates(tmp_path / "certs", Clock(), own=files)
    assert not certificates.has_changed()

    make_pair(other)
    other.certificate.replace(files.certificate)
    first = certificates.has_changed()
    other.key.replace(files.key)
    second, third = certificates.has_changed(), certificates.has_changed()
    certificates.read()

    assert (first, second, third) == (False, False, True)
    assert not certificates.has_changed()


def _bad(files: ServerFiles, kind: str) -> None:
    match kind:
        case "not of this key":
            key = files.key.read_bytes()
            make_pair(files)
            files.key.write_bytes(key)
        case "no certificate":
            files.certificate.write_text("-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n")
        case "no key":
            files.key.write_text("none")
        case "missing":
            files.certificate.unlink()
        case "ended":
            make_pair(files, days=-1)
        case "for clients":
            make_pair(files, usage=ExtendedKeyUsageOID.CLIENT_AUTH)
        case "encrypted":
            make_pair(files, passphrase=b"a passphrase")
        case "open to others":
            files.key.chmod(0o644)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("not of this key", "do not belong together"),
        ("no certificate", "does not hold a certificate"),
        ("no key", "does not hold a private key"),
        ("missing", "own.pem cannot be read: No such file"),
        ("ended", "ended on"),
        ("for clients", "is not for servers"),
        ("encrypted", "is encrypted"),
        ("open to others", "chmod 600"),
    ],
)
async def test_an_own_certificate_that_cannot_be_served_is_refused_and_the_former_one_stays(
    tmp_path: Path, kind: str, said: str
) -> None:
    files = own_files(tmp_path / "own")
    former = make_pair(files)
    certificates = Certificates(tmp_path / "certs", Clock(), own=files)
    async with Listener(certificates) as listener:
        _bad(files, kind)

        with pytest.raises(ConfigInvalid, match=said):
            certificates.read()
        certificates.serve()

        assert await shown_serial(listener.port) == former.serial_number
        assert [said in text and "former certificate is served" in text for text in certificates.warnings()] == [True]
        files.certificate.unlink(missing_ok=True)
        files.key.unlink()
        mended = make_pair(files)
        certificates.read()
        certificates.serve()
        assert await shown_serial(listener.port) == mended.serial_number
        assert certificates.warnings() == []


@pytest.mark.parametrize(
    ("names", "is_known"),
    [(["gw.example"], True), (["*.example"], True), (["*.gw.example"], False), (["10.0.0.7"], True), ([], False)],
)
def test_an_own_certificate_for_other_names_is_a_warning(tmp_path: Path, names: list[str], is_known: bool) -> None:
    files = own_files(tmp_path / "own")
    make_pair(files, names=names)

    found = Certificates(tmp_path / "certs", Clock(), names=["localhost", "10.0.0.7", "gw.example"], own=files)

    assert ["none of this gateway's names" in text for text in found.warnings()] == ([] if is_known else [True])


def test_a_certificate_from_the_future_is_a_warning_about_the_clock(tmp_path: Path) -> None:
    clock = Clock()
    certificates = Certificates(tmp_path / "certs", clock)

    clock.now = 0

    assert any("clock" in text for text in certificates.warnings())


@pytest.mark.parametrize("name", ["ca.key", "server.key"])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, name: str) -> None:
    Certificates(tmp_path / "certs", Clock())
    (tmp_path / "certs" / name).chmod(0o640)

    with pytest.raises(ConfigInvalid, match="chmod 600"):
        Certificates(tmp_path / "certs", Clock()).server_context()


def test_key_and_certificate_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    one, two = Certificates(tmp_path / "one", Clock()), Certificates(tmp_path / "two", Clock())
    mixed = ServerFiles(certificate=one.files.certificate, key=two.files.key)

    with pytest.raises(ConfigInvalid, match="belong together"):
        Certificates(tmp_path / "certs", Clock(), own=mixed).server_context()


def test_a_client_certificate_is_made_for_account_names_only(tmp_path: Path) -> None:
    with pytest.raises(BadAddress):
        Certificates(tmp_path / "certs", Clock()).issue_client("+/#")


def test_keys_are_readable_by_the_owner_alone(tmp_path: Path) -> None:
    Certificates(tmp_path / "certs", Clock())

    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "certs").glob("*.key")}

    assert modes == {"ca.key": 0o600, "server.key": 0o600}


async def test_a_name_that_comes_later_is_served_to_new_connections_without_a_new_context(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certs", Clock())
    trusting = certificates.client_context()

    async with Listener(certificates) as listener, asyncio.timeout(30):

        async def connect() -> None:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", listener.port, ssl=trusting, server_hostname="gw.lan"
            )
            writer.close()

        with pytest.raises(ssl.SSLCertVerificationError):
            await connect()
        is_new = certificates.prepare(["127.0.0.1", "gw.lan"])
        certificates.serve()
        await connect()

    assert is_new
    assert not certificates.prepare(["gw.lan"]), "a name that is gone is no reason for another certificate"


def test_own_certificates_do_not_follow_names(tmp_path: Path) -> None:
    other = Certificates(tmp_path / "other", Clock())
    certificates = Certificates(tmp_path / "certs", Clock(), own=other.files)

    assert not certificates.prepare(["gw.lan"])


async def test_the_authority_vouches_for_hosts_of_local_networks_and_for_its_gateway_only(tmp_path: Path) -> None:
    names = ["gw.example.org", "192.0.2.7", "2001:db8::7", "127.0.0.1"]
    certificates = Certificates(tmp_path / "certs", Clock(), names=names)
    authority = x509.load_pem_x509_certificate(certificates.ca_file.read_bytes())

    for name in (*names, "2001:db8::ffff", "a.gw.example.org", "gateway.local", "localhost", "10.1.2.3", "fd00::1"):
        assert may_certify(authority, name), name
    for name in ("example.org", "bank.example", "gw.example.org.evil.example", "192.0.2.8", "2001:db9::7", "8.8.8.8"):
        assert not may_certify(authority, name), name


async def test_a_certificate_that_a_thief_of_the_key_makes_for_another_site_is_refused(tmp_path: Path) -> None:
    theirs = Certificates(tmp_path / "certs", Clock())
    theirs._ca = x509.CertificateBuilder(  # the constraints are forgotten, the key is the same
        subject_name=theirs._ca.subject,
        issuer_name=theirs._ca.subject,
        public_key=theirs._ca.public_key(),
        serial_number=1,
        not_valid_before=theirs._ca.not_valid_before_utc,
        not_valid_after=theirs._ca.not_valid_after_utc,
    ).sign(theirs._ca_key, hashes.SHA256())
    trusting = theirs.client_context()
    theirs.prepare(["bank.example"])

    async with Listener(theirs) as listener, asyncio.timeout(30):
        with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree violation"):
            await asyncio.open_connection("127.0.0.1", listener.port, ssl=trusting, server_hostname="bank.example")


def test_a_name_beyond_the_authority_is_left_out_and_told(tmp_path: Path) -> None:
    Certificates(tmp_path / "certs", Clock())

    certificates = Certificates(tmp_path / "certs", Clock(), names=["localhost", "gw.example.org"])

    (warning,) = certificates.warnings()
    assert "may not certify gw.example.org" in warning
    served = x509.load_pem_x509_certificate(certificates.files.certificate.read_bytes())
    carried = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "gw.example.org" not in carried.get_values_for_type(x509.DNSName)
    for name in ("ca.pem", "ca.key"):
        (tmp_path / "certs" / name).unlink()
    anew = Certificates(tmp_path / "certs", Clock(), names=["localhost", "gw.example.org"])
    assert anew.warnings() == []
    assert anew.files.certificate.read_bytes() != served.public_bytes(serialization.Encoding.PEM)


async def test_an_authority_made_without_constraints_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        anything = x509.NameConstraints(permitted_subtrees=None, excluded_subtrees=[x509.DNSName("never.invalid")])
        patched.setattr(authn.certificates, "constraints", lambda _names: anything)
        Certificates(tmp_path / "certs", Clock())

    certificates = Certificates(tmp_path / "certs", Clock(), names=["gw.example.org"])

    assert certificates.warnings() == []


async def test_an_account_whose_name_looks_like_a_host_logs_in_by_certificate(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certs", Clock())
    made, key = certificates.issue_client("pump.one")
    assert key is not None
    (tmp_path / "client.pem").write_text(made + key)
    context = certificates.client_context()
    context.load_cert_chain(tmp_path / "client.pem")

    async with Listener(certificates) as listener:
        answer, _ = await ask(listener.port, context)

    assert answer == "pump.one"
