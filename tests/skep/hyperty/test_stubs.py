"""Which stub leads where, for a runtime in Python."""

import anyio
import pytest

from skep.hyperty import Runtime
from skep.hyperty.stubs import Stub
from tests.support import Skep
from things.bus import Listener
from things.envelopes import Envelope, read, response, served_domain
from things.errors import Invalid, NoStub, NotFound
from things.messages import JSONValue

pytestmark = pytest.mark.anyio


class Elsewhere:
    """A stub to a domain that answers everything by its own name."""

    def __init__(self, runtime_url: str, arrived: Listener) -> None:
        self.runtime_url = runtime_url
        self.arrived = arrived
        self.taken: list[Envelope] = []
        self.closed = False

    def send(self, envelope: Envelope) -> None:
        self.taken.append(envelope)
        if not envelope.is_response:
            self.arrived(read(response(envelope, {"code": 200, "value": "elsewhere"})))

    async def serve(self) -> None:
        await anyio.sleep_forever()

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("address", "domain"),
    [
        ("comm://localhost/o", "localhost"),
        ("domain://registry.example.org", "example.org"),
        ("domain://msg-node.localhost/sm", "localhost"),
        ("hyperty-catalogue://catalogue.example.org/.well-known/x", "example.org"),
        ("user://example.org/ann", ""),
        ("global://registry/", ""),
        ("runtime:/alice", ""),
        ("hyper-1", ""),
    ],
)
def test_address_says_which_domain_serves_it(address: str, domain: str) -> None:
    assert served_domain(address) == domain


async def test_own_node_s_stub_is_found_and_a_foreign_domain_is_refused(house: Skep) -> None:
    async with Runtime(house.http) as runtime:
        assert (await runtime.ask("domain://idm.localhost", "read"))["code"] == 200
        for address in ("comm://elsewhere.example/o", "domain://registry.elsewhere.example"):
            with pytest.raises(NoStub, match=r"elsewhere\.example") as refused:
                await runtime.ask(address, "read")
            assert refused.value.code == "no-stub"
        with pytest.raises(NoStub):
            await runtime.observe("comm://elsewhere.example/o")
        with pytest.raises(Invalid):
            await runtime.report("x", {}, url="comm://elsewhere.example/o")
        with pytest.raises(NotFound) as unknown:
            await runtime.ask("comm://localhost/nobody", "read")
        assert unknown.value.code == "not-found"
        assert not runtime.sandbox.responses._waiting


async def test_runtime_finds_the_stub_it_was_given_for_a_domain(house: Skep) -> None:
    made: list[Elsewhere] = []

    def factory(runtime_url: str, arrived: Listener) -> Stub:
        made.append(Elsewhere(runtime_url, arrived))
        return made[0]

    async with Runtime(house.http, stubs={"elsewhere.example": factory}) as runtime:
        answer = await runtime.ask("comm://elsewhere.example/o", "read")
        own = await runtime.ask("domain://idm.localhost", "read")

        assert answer["value"] == "elsewhere"
        assert isinstance(own["value"], dict)
        assert made[0].runtime_url == runtime.url
        assert [one.to for one in made[0].taken] == ["comm://elsewhere.example/o"]

        heard: list[JSONValue] = []

        def listener(envelope: Envelope) -> dict[str, JSONValue]:
            heard.append(envelope.sender)
            return {"code": 200}

        # Whoever wrote from a domain without a stub is answered the way it came.
        hyperty = await runtime.hyperty(listener)
        made[0].arrived(read({"id": 9, "type": "read", "from": "hyperty://third.example/h", "to": hyperty}))
        assert heard == ["hyperty://third.example/h"]
        assert (made[0].taken[-1].to, made[0].taken[-1].type) == ("hyperty://third.example/h", "response")
    assert made[0].closed
