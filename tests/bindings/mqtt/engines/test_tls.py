"""TLS listeners of every engine: who a client certificate names, and who gets no answer without TLS."""

import contextlib
import ssl
from pathlib import Path

import pytest

from authn.certificates import Certificates
from bindings.mqtt.engines.seam import Limits, Listener
from runtime.clocks import wall_clock
from tests.bindings.mqtt import wire
from tests.bindings.mqtt.engines.contract import ENGINES, EngineType, Recording, serving
from tests.bindings.mqtt.wire import connect, raw

pytestmark = pytest.mark.anyio


@pytest.fixture(params=sorted(ENGINES))
def engine_type(request: pytest.FixtureRequest) -> EngineType:
    return ENGINES[request.param]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certs", wall_clock)


def _listeners(certificates: Certificates) -> list[Listener]:
    plain = Listener(host="127.0.0.1", port=0)
    return [plain, Listener(host="127.0.0.1", port=0, tls=certificates.server_context())]


async def test_a_password_and_a_certificate_each_open_a_connection_over_tls(
    engine_type: EngineType, certificates: Certificates, tmp_path: Path
) -> None:
    gate = Recording()
    certificate, key = certificates.issue_client("carla")
    assert key is not None
    files = tmp_path / "carla.pem", tmp_path / "carla.key"
    files[0].write_text(certificate)
    files[1].write_text(key)
    context = certificates.client_context()
    context.load_cert_chain(*files)
    async with serving(engine_type(_listeners(certificates), Limits()), gate) as (addresses, _):
        assert addresses[0] != addresses[1]
        async with raw(addresses[1], certificates.client_context()) as client:
            client.send(connect("1", "ann", "ann-secret"))
            assert (await client.expect(wire.CONNACK)).body[1] == 0
            await client.ping()
        async with raw(addresses[1], context) as client:
            client.send(connect("2"))
            assert (await client.expect(wire.CONNACK)).body[1] == 0

    assert [hello.certificate_name for hello in gate.hellos] == [None, "carla"]
    assert [link.principal.account for link in gate.links] == ["ann", "carla"]
    assert {hello.source for hello in gate.hellos} == {"127.0.0.1"}


async def test_a_certificate_of_another_authority_and_plain_bytes_get_no_answer(
    engine_type: EngineType, certificates: Certificates, tmp_path: Path
) -> None:
    gate = Recording()
    foreign = Certificates(tmp_path / "foreign", wall_clock)
    certificate, key = foreign.issue_client("carla")
    assert key is not None
    files = tmp_path / "carla.pem", tmp_path / "carla.key"
    files[0].write_text(certificate)
    files[1].write_text(key)
    context = certificates.client_context()
    context.load_cert_chain(*files)
    limits = Limits(connect_timeout_s=0.5)
    async with serving(engine_type(_listeners(certificates), limits), gate) as (addresses, _):
        with contextlib.suppress(ssl.SSLError, ConnectionError):  # with TLS 1.3 the refusal may come later
            async with raw(addresses[1], context) as client:
                client.send(connect("2"))
                assert await client.is_cut_off()
        async with raw(addresses[1]) as client:
            client.send(connect("3", "ann", "ann-secret"))
            assert await client.is_cut_off()

    assert gate.hellos == []


async def test_a_client_that_never_begins_its_handshake_is_given_up_like_one_without_a_connect(
    engine_type: EngineType, certificates: Certificates
) -> None:
    limits = Limits(connect_timeout_s=0.5)
    async with (
        serving(engine_type(_listeners(certificates), limits), Recording()) as (addresses, _),
        raw(addresses[1]) as silent,
    ):
        assert await silent.is_cut_off()
