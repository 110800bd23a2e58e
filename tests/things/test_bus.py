"""The bus family: exact matching, default routes, responses, pipelines and stubs."""

import pytest

from things.bus import ANY, Bus, MessageBus, MiniBus, changed
from things.envelopes import Document, Envelope, read
from things.errors import Forbidden


def message(to: str = "b", **members: object) -> Envelope:
    document: Document = {"id": 1, "type": "read", "from": "a", "to": to}
    return read(document | members)  # type: ignore[arg-type]


def test_a_bus_matches_exactly_and_falls_back_to_the_default_route() -> None:
    bus: Bus[str] = Bus()
    assert (bus.add("x", "one"), bus.add("x", "one"), bus.add(ANY, "rest")) == (True, False, True)

    assert (bus.found("x"), bus.found("x/y"), bus.at("x/y")) == (("one",), ("rest",), ())
    assert (bus.remove("x", "one"), bus.remove("x", "one")) == (True, False)
    assert bus.found("x") == ("rest",)


def test_a_sandbox_numbers_what_it_posts_and_always_sends_it_out() -> None:
    out: list[Envelope] = []
    bus = MiniBus(out.append)
    heard: list[Envelope] = []
    bus.listen("me", heard.append)

    bus.post({"type": "ping", "from": "me", "to": "me"})
    bus.post({"type": "ping", "from": "me", "to": "me", "id": 0})

    assert [one.id for one in out] == [1, 2]
    assert not heard


def test_a_response_goes_to_who_asked_and_not_to_plain_listeners() -> None:
    bus = MiniBus(lambda envelope: None)
    heard: list[Envelope] = []
    answers: list[object] = []
    bus.listen("a", heard.append)
    bus.post({"type": "read", "from": "a", "to": "b", "id": 7}, lambda envelope: answers.append(envelope.body["code"]))

    for code in (100, 200, 200):
        bus.receive(read({"id": 7, "type": "response", "from": "b", "to": "a", "body": {"code": code}}))

    assert answers == [100, 200]
    assert len(heard) == 1


def test_a_runtime_s_bus_delivers_locally_and_else_by_the_stub_that_is_resolved() -> None:
    bus = MessageBus(lambda address: "stub" if address.startswith("far") else None)
    local: list[Envelope] = []
    stub: list[Envelope] = []
    bus.listeners.add("b", local.append)
    bus.listeners.add("stub", stub.append)

    assert bus.post(message())
    assert bus.post(message("far/x"))
    assert not bus.post(message("nowhere"))
    assert (len(local), len(stub)) == (1, 1)


def test_published_addresses_go_outward_too_until_all_took_it_back() -> None:
    bus = MessageBus(lambda address: "stub")
    stub: list[Envelope] = []
    bus.listeners.add("stub", stub.append)
    bus.listeners.add("b", lambda envelope: None)
    ends = [bus.publish("b"), bus.publish("b")]

    bus.post(message())
    ends[0]()
    bus.post(message())
    ends[1]()
    bus.post(message())

    assert len(stub) == 2


def test_pipelines_change_stop_and_refuse_in_order() -> None:
    bus = MessageBus(lambda address: None)
    heard: list[Envelope] = []
    bus.listeners.add("b", heard.append)
    seen: list[str] = []

    def refuse(envelope: Envelope) -> Envelope | None:
        raise Forbidden

    bus.inward += [lambda envelope: changed(envelope, body={"auth": True}), lambda envelope: envelope]
    assert bus.post(message())
    assert heard[0].body == {"auth": True}
    bus.inward = [refuse, lambda envelope: seen.append("second")]
    with pytest.raises(Forbidden):
        bus.post(message())
    assert not seen
    bus.inward = [lambda envelope: None]
    assert bus.post(message())
    assert len(heard) == 1
