"""Reporters and observers on a real node, through the SDK."""

import asyncio
from pathlib import Path

import anyio
import pytest

from skep.hyperty import ObjectChange, Observer, Reporter, Runtime
from tests.support import Skep, skep
from things.envelopes import Envelope
from things.errors import Forbidden, NotFound, TimedOut, Unauthenticated
from things.messages import JSONValue

pytestmark = pytest.mark.anyio


async def changes(observer: Observer, count: int) -> list[ObjectChange]:
    found: list[ObjectChange] = []
    with anyio.fail_after(30):
        async for one in observer:
            found.append(one)
            if len(found) == count:
                break
    return found


async def test_observers_follow_every_kind_of_change_in_order(house: Skep) -> None:
    async with Runtime(house.http) as alice, Runtime(house.http) as bob:
        reporter = await alice.report("room", {"temperature": 20, "seats": ["a"], "at": {"x": 1}})
        observer = await bob.observe(reporter.url)
        assert observer.data == {"temperature": 20, "seats": ["a"], "at": {"x": 1}}

        await reporter.set("temperature", 21)
        await reporter.set("at.x", 2)
        await reporter.add("seats", "b", "c")
        await reporter.take_out("seats", "a")
        await reporter.remove("temperature")

        followed = await changes(observer, 5)

    assert [one.attribute for one in followed] == ["temperature", "at", "seats", "seats", "temperature"]
    assert observer.data == {"seats": ["b", "c"], "at": {"x": 2}} == reporter.data
    assert observer.version == reporter.version == 6


async def test_only_the_preauthorised_may_observe_and_an_invited_one_becomes_so(house: Skep) -> None:
    invited: list[Envelope] = []

    def offered(envelope: Envelope) -> dict[str, JSONValue]:
        invited.append(envelope)
        return {"code": 200}

    async with Runtime(house.http) as alice, Runtime(house.http) as bob:
        reporter = await alice.report("diary", {"page": 1}, authorise=())
        with pytest.raises(Forbidden):
            await bob.observe(reporter.url)
        hyperty = await bob.hyperty(offered)

        await reporter.invite(hyperty)
        observer = Observer(bob, reporter.url, hyperty, children=())
        await observer.begin()

        assert observer.data == {"page": 1}
        assert invited[0].sender == f"{reporter.url}/subscription"


async def test_children_belong_to_their_creators(house: Skep) -> None:
    async with Runtime(house.http) as alice, Runtime(house.http) as bob, Runtime(house.http) as carol:
        reporter = await alice.report("chat", {}, children=("message",))
        bobs = await bob.observe(reporter.url, children=("message",))
        carols = await carol.observe(reporter.url, children=("message",))

        resource = await bobs.add_child("message", "hello")
        assert (await changes(carols, 1))[0].value == "hello"
        with pytest.raises(Forbidden):
            await carols.set_child("message", resource, "changed by another")
        await bobs.set_child("message", resource, "hello all")

        assert (await changes(carols, 1))[0].value == "hello all"
        assert reporter.children.values == {"message": {resource: "hello all"}}
        await bobs.remove_child("message", resource)
        assert reporter.children.values == {"message": {}}


async def test_observer_that_leaves_hears_nothing_more_and_the_deleted_object_is_gone(house: Skep) -> None:
    async with Runtime(house.http) as alice, Runtime(house.http) as bob, Runtime(house.http) as carol:
        reporter = await alice.report("game", {"score": 0})
        bobs, carols = await bob.observe(reporter.url), await carol.observe(reporter.url)
        await bobs.leave()

        await reporter.set("score", 1)
        assert (await changes(carols, 1))[0].value == 1
        assert bobs.data == {"score": 0}
        await reporter.delete()

        assert (await changes(carols, 1))[0].is_deleted
        with pytest.raises(NotFound):
            await alice.find(reporter.url)
        with pytest.raises(NotFound):
            await bob.observe(reporter.url)


async def test_lost_connection_is_taken_up_again_and_nothing_is_missed(house: Skep) -> None:
    async with Runtime(house.http) as alice, Runtime(house.http) as bob:
        reporter = await alice.report("meter", {"count": 0})
        observer = await bob.observe(reporter.url)
        socket = bob._stub._socket
        assert socket is not None

        socket.transport.abort()
        for count in range(1, 21):
            await reporter.set("count", count)

        followed = await changes(observer, 20)
        assert [one.value for one in followed] == list(range(1, 21))


async def test_versions_heal_an_observer_that_missed_changes(house: Skep) -> None:
    async with Runtime(house.http) as alice, Runtime(house.http) as bob:
        reporter = await alice.report("meter", {"count": 0})
        observer = await bob.observe(reporter.url)
        reporter.version += 3  # as if changes had been lost on the way
        reporter.data["hidden"] = True

        await reporter.set("count", 1)
        await changes(observer, 1)

        assert observer.data == {"count": 1, "hidden": True}
        assert observer.version == reporter.version


async def test_observer_follows_an_object_whose_reporter_began_again(house: Skep) -> None:
    url = "ctxt://localhost/room"
    async with Runtime(house.http) as bob:
        async with Runtime(house.http) as alice:
            first = await alice.report("room", {"count": 0}, url=url)
            observer = await bob.observe(url)
            for count in range(1, 6):
                await first.set("count", count)
            await changes(observer, 5)
        async with Runtime(house.http) as alice:
            second = await alice.report("room", {"count": 100}, url=url)
            await second.set("count", 101)
            assert second.version < first.version

            assert (await changes(observer, 1))[0].value == {"count": 101}
            await second.set("count", 102)

            assert (await changes(observer, 1))[0].value == 102
            assert observer.version == second.version


async def test_requests_nobody_takes_or_answers_end_as_404_and_408(house: Skep) -> None:
    async with Runtime(house.http) as alice, Runtime(house.http) as bob:
        silent = await bob.hyperty(lambda envelope: None)

        with pytest.raises(NotFound):
            await alice.ask("hyperty://localhost/nobody", "read")
        with pytest.raises(TimedOut):
            await alice.ask(silent, "read", wait_s=0.2)


async def test_provisional_answers_come_before_the_final_one(house: Skep) -> None:
    async with Runtime(house.http) as alice, Runtime(house.http) as bob:

        def listener(envelope: Envelope) -> dict[str, JSONValue]:
            document: dict[str, JSONValue] = {
                "id": envelope.id,
                "type": "response",
                "from": envelope.to,
                "to": envelope.sender,
                "body": {"code": 100, "value": "working"},
            }
            bob.sandbox.post(document)
            return {"code": 200, "value": "done"}

        worker = await bob.hyperty(listener)
        heard: list[JSONValue] = []

        assert await alice.execute(worker, "work", progress=heard.append) == "done"
        assert heard == ["working"]


async def test_provisional_answers_begin_the_wait_anew(house: Skep) -> None:
    async with Runtime(house.http) as alice, Runtime(house.http) as bob:

        def work(envelope: Envelope) -> None:
            # Longer than a silence may be, and never silent that long.
            loop = asyncio.get_running_loop()
            for step in range(1, 5):
                loop.call_later(0.2 * step, lambda: bob.respond(envelope, {"code": 100}))
            loop.call_later(1.0, lambda: bob.respond(envelope, {"code": 200, "value": "done"}))

        worker = await bob.hyperty(work)

        assert (await alice.ask(worker, "execute", wait_s=0.5))["value"] == "done"


async def test_closed_node_refuses_runtimes_without_an_account_and_takes_tokens(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        ann = await house.add("ann")
        with pytest.raises(Unauthenticated):
            async with Runtime(house.http):
                pass
        async with Runtime(house.http, token=ann.token) as runtime:
            assert (await runtime.hyperty()).startswith("hyperty://localhost/")


async def test_reporter_and_observer_in_one_runtime_hear_each_change_once(house: Skep) -> None:
    async with Runtime(house.http) as alice:
        reporter: Reporter = await alice.report("self", {"n": 0})
        observer = await alice.observe(reporter.url)

        await reporter.set("n", 1)
        await reporter.set("n", 2)

        assert [one.value for one in await changes(observer, 2)] == [1, 2]
