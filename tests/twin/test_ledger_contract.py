"""What any ledger must do: one row a reference, legal steps only, clocks, queues, inbox, restart."""

import asyncio
from dataclasses import replace

import anyio
import pytest

from tests.twin.conftest import OpenTwin
from things.delivery import Reason, State
from things.errors import BadCursor, Conflict, IllegalStatus, UnknownRequest
from things.messages import JSONValue, Operation
from things.records import LedgerQuery, LedgerRow

pytestmark = pytest.mark.anyio

T0 = 1_770_000_000_000_000
S = 1_000_000


def request(number: int, **more: object) -> LedgerRow:
    row = LedgerRow(
        request_id=f"r{number}",
        caller_ref=f"c{number}",
        operation=Operation.INVOKE_ACTION,
        caller="carol",
        thing_id="dtw:agent:lamp",
        agent="agent",
        name="toggle",
        input={"on": True},
        has_input=True,
        state=State.PENDING,
        expires=T0 + 100 * S,
        deadline_s=60.0,
        created=T0,
        updated=T0,
    )
    return replace(row, **more)  # type: ignore[arg-type]


async def test_a_new_request_is_pending_and_survives_a_restart(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            row, is_new = await twin.ledger.open(request(1))
        async with opened() as twin:
            kept = await twin.ledger.get("r1")
            second, _ = await twin.ledger.open(request(2))

    assert is_new
    assert row.transitions[0].state is State.PENDING
    assert kept == row
    assert kept.input == {"on": True}
    assert second.seq > row.seq


async def test_the_same_reference_and_content_is_the_same_row(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            row, _ = await twin.ledger.open(request(1))
            again, is_new = await twin.ledger.open(request(2, caller_ref="c1"))
            found = await twin.ledger.by_reference("carol", "c1")

    assert (again, is_new) == (row, False)
    assert found == row


@pytest.mark.parametrize(
    "other",
    [
        {"input": {"on": 1}},
        {"input": {"on": False}},
        {"input": None, "has_input": False},
        {"input": None},
        {"name": "blink"},
        {"thing_id": "dtw:agent:other"},
        {"operation": Operation.WRITE_PROPERTY},
    ],
)
async def test_the_same_reference_with_other_content_is_a_conflict(opened: OpenTwin, other: dict[str, object]) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            row, _ = await twin.ledger.open(request(1))
            with pytest.raises(Conflict):
                await twin.ledger.open(request(2, caller_ref="c1", **other))
            mine, is_new = await twin.ledger.open(request(3, caller_ref="c1", caller="dave"))

            assert await twin.ledger.get("r1") == row
            assert await twin.ledger.get("r2") is None
            assert (mine.request_id, is_new) == ("r3", True)


async def test_delivered_is_recorded_before_an_agents_first_word(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.ledger.open(request(1))
            handed, row = await twin.ledger.advance("r1", State.COMPLETED, now=T0 + S, agent="agent", output={"ok": 1})
            told = await twin.ledger.inbox("carol", after=0, limit=10)
            whole = await twin.ledger.get("r1")

    assert (handed.state, handed.output, handed.attempts, handed.deadline) == (State.DELIVERED, None, 1, T0 + 61 * S)
    assert (row.state, row.output, row.attempts, row.deadline) == (State.COMPLETED, {"ok": 1}, 1, None)
    assert [handed.status(), row.status()] == told[1:]
    assert whole is not None
    assert [step.state for step in whole.transitions] == [State.PENDING, State.DELIVERED, State.COMPLETED]
    assert whole.output == {"ok": 1}


async def test_a_cancelled_or_expired_request_was_never_delivered(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            for number in (1, 2):
                await twin.ledger.open(request(number))
            await twin.ledger.advance("r1", State.CANCELLED, now=T0)
            await twin.ledger.advance("r2", State.FAILED, now=T0, reason=Reason.EXPIRED)
            rows = await twin.ledger.query(LedgerQuery(states=[State.CANCELLED, State.FAILED]))

    assert [(row.state, row.reason, row.attempts) for row in rows] == [
        (State.FAILED, Reason.EXPIRED, 0),
        (State.CANCELLED, None, 0),
    ]
    assert all(len(row.transitions) == 2 for row in rows)


async def test_a_request_that_was_handed_over_and_never_acknowledged_cannot_expire(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            for number, attempts in ((1, 1), (2, 0), (3, 0)):
                await twin.ledger.open(request(number, attempts=attempts))
            await twin.ledger.advance("r3", State.CANCELLED, now=T0)
            counted = await twin.ledger.count_hand_over(["r2", "r3", "unknown"])
        async with opened() as twin:
            due = await twin.ledger.due(T0 + 100 * S, limit=10)
            for row in due:
                with pytest.raises(IllegalStatus):
                    await twin.ledger.advance(row.request_id, State.FAILED, now=T0 + 100 * S, reason=Reason.EXPIRED)
            ended = [
                await twin.ledger.advance(row.request_id, State.FAILED, now=T0 + 100 * S, reason=Reason.TIMEOUT)
                for row in due
            ]

    assert list(counted) == ["r2"]
    assert [(row.request_id, row.attempts, row.seq) for row in due] == [("r1", 1, 1), ("r2", 1, 2)]
    assert [(row.reason, row.attempts) for (row,) in ended] == [(Reason.TIMEOUT, 1), (Reason.TIMEOUT, 1)]


async def test_a_hand_over_that_did_not_take_place_is_taken_back(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.ledger.open(request(1, attempts=1))
            await asyncio.gather(*(twin.ledger.count_hand_over(["r1"], by=-1) for _ in range(2)))
            (row,) = await twin.ledger.advance("r1", State.FAILED, now=T0 + 100 * S, reason=Reason.EXPIRED)

    assert row.attempts == 0


async def test_a_clock_that_was_looked_at_before_the_agent_was_faster_ends_nothing(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.ledger.open(request(1))
            await twin.ledger.advance("r1", State.DELIVERED, now=T0 + 99 * S)
            with pytest.raises(IllegalStatus):
                await twin.ledger.advance("r1", State.FAILED, now=T0 + 100 * S, reason=Reason.EXPIRED)
            await twin.ledger.advance("r1", State.RUNNING, now=T0 + 150 * S, agent="agent")
            with pytest.raises(IllegalStatus):
                await twin.ledger.advance("r1", State.FAILED, now=T0 + 160 * S, reason=Reason.TIMEOUT)
            row = await twin.ledger.get("r1")

    assert row is not None
    assert (row.state, row.deadline) == (State.RUNNING, T0 + 210 * S)


async def test_a_row_and_its_steps_are_read_as_of_one_moment(opened: OpenTwin) -> None:
    torn: list[LedgerRow] = []
    async with opened() as twin:

        async def read(request_id: str) -> None:
            while True:
                row = await twin.ledger.get(request_id)
                assert row is not None
                if row.transitions[-1].state is not row.state:
                    torn.append(row)
                if row.state is State.COMPLETED:
                    return

        with anyio.fail_after(30):
            for number in range(40):
                await twin.ledger.open(request(number))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(read, f"r{number}")
                    tasks.start_soon(read, f"r{number}")
                    for state in (State.RUNNING, State.COMPLETED):
                        await twin.ledger.advance(f"r{number}", state, now=T0, agent="agent")

    assert torn == []


async def test_final_foreign_and_unknown_requests_take_no_step(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.ledger.open(request(1))
            with pytest.raises(UnknownRequest):
                await twin.ledger.advance("r1", State.COMPLETED, now=T0, agent="mallory")
            with pytest.raises(UnknownRequest):
                await twin.ledger.advance("r9", State.COMPLETED, now=T0)
            await twin.ledger.advance("r1", State.COMPLETED, now=T0, agent="agent")
            before = await twin.ledger.get("r1")
            for late in (State.RUNNING, State.COMPLETED, State.PENDING, State.DELIVERED, State.CANCELLED):
                with pytest.raises(IllegalStatus):
                    await twin.ledger.advance("r1", late, now=T0 + S, agent="agent")

            assert await twin.ledger.get("r1") == before


async def test_a_refused_step_undoes_itself_and_not_its_neighbours(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.ledger.open(request(1))
            outcomes: list[object] = []

            async def attempt(agent: str) -> None:
                try:
                    outcomes.append((await twin.ledger.advance("r1", State.RUNNING, now=T0, agent=agent))[-1].state)
                except UnknownRequest as error:
                    outcomes.append(error.code)

            async with anyio.create_task_group() as tasks:
                for agent in ("agent", "mallory", "agent"):
                    tasks.start_soon(attempt, agent)

            assert sorted(map(str, outcomes)) == ["running", "running", "unknown-request"]


async def test_the_deadline_restarts_with_each_word_and_runs_on_after_a_lost_session(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.ledger.open(request(1))
            pending = await twin.ledger.next_due()
            await twin.ledger.advance("r1", State.DELIVERED, now=T0 + 10 * S)
            delivered = await twin.ledger.next_due()
            await twin.ledger.advance("r1", State.WAITING, now=T0 + 20 * S, agent="agent")
            (back,) = await twin.ledger.advance("r1", State.PENDING, now=T0 + 30 * S)
            await twin.ledger.count_hand_over(["r1"])
            (again,) = await twin.ledger.advance("r1", State.DELIVERED, now=T0 + 40 * S)
            lapsed = await twin.ledger.due(T0 + 80 * S, limit=10)
            early = await twin.ledger.due(T0 + 80 * S - 1, limit=10)
            await twin.ledger.advance("r1", State.FAILED, now=T0 + 80 * S, reason=Reason.TIMEOUT)

            assert (pending, delivered) == (T0 + 100 * S, T0 + 70 * S)
            assert (back.deadline, again.deadline, again.attempts) == (T0 + 80 * S, T0 + 80 * S, 2)
            assert ([row.request_id for row in lapsed], early) == (["r1"], [])
            assert await twin.ledger.next_due() is None


async def test_queues_of_an_agent_are_oldest_first_and_paged(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            for number in (5, 3, 4, 1):
                await twin.ledger.open(request(number))
            await twin.ledger.open(request(2, agent="other", caller="dave"))
            await twin.ledger.advance("r4", State.DELIVERED, now=T0)
            first = await twin.ledger.waiting("agent", limit=2)
            rest = await twin.ledger.waiting("agent", limit=2, after=first[-1].request_id)
            unanswered = await twin.ledger.unanswered("agent", limit=10)

            assert [row.request_id for row in [*first, *rest]] == ["r5", "r3", "r1"]
            assert [row.request_id for row in unanswered] == ["r4"]
            assert await twin.ledger.waiting_counts() == ({"agent": 3, "other": 1}, {"carol": 3, "dave": 1})


async def test_a_newer_write_supersedes_queued_ones_of_the_same_property(opened: OpenTwin) -> None:
    write = {"operation": Operation.WRITE_PROPERTY, "name": "brightness"}
    with anyio.fail_after(30):
        async with opened() as twin:
            for number in (1, 2, 3):
                await twin.ledger.open(request(number, **write))
            await twin.ledger.advance("r1", State.DELIVERED, now=T0)
            await twin.ledger.advance("r1", State.PENDING, now=T0)
            await twin.ledger.open(request(4, operation=Operation.WRITE_PROPERTY, name="colour"))
            await twin.ledger.open(request(5, name="brightness"))
            newest, _ = await twin.ledger.open(request(6, **write))
            await twin.ledger.open(request(7, **write))
            spared = await twin.ledger.supersede(
                "dtw:agent:lamp", "brightness", before="r6", sparing={"r2", "r3"}, now=T0 + S
            )
            ended = await twin.ledger.supersede("dtw:agent:lamp", "brightness", before="r6", now=T0 + S)
            waiting = await twin.ledger.waiting("agent", limit=10)

            assert spared == []
            assert [(row.request_id, row.state, row.reason) for row in ended] == [
                ("r2", State.CANCELLED, Reason.SUPERSEDED),
                ("r3", State.CANCELLED, Reason.SUPERSEDED),
            ]
            assert [row.request_id for row in waiting] == ["r1", "r4", "r5", "r6", "r7"]
            assert ended[0].seq > newest.seq


async def test_the_inbox_replays_every_status_of_its_caller_in_order(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.ledger.open(request(1))
            await twin.ledger.open(request(2, caller="dave"))
            await twin.ledger.advance("r1", State.RUNNING, now=T0, agent="agent", progress=40.0)
            await twin.ledger.advance("r1", State.COMPLETED, now=T0, agent="agent", error="jammed")
        async with opened() as twin:
            whole = await twin.ledger.inbox("carol", after=0, limit=10)
            rest = await twin.ledger.inbox("carol", after=whole[1].seq, limit=1)

    assert [(one.state, one.progress, one.error) for one in whole] == [
        (State.PENDING, None, None),
        (State.DELIVERED, None, None),
        (State.RUNNING, 40.0, None),
        (State.COMPLETED, 40.0, "jammed"),
    ]
    assert rest == [whole[2]]
    assert {one.caller_ref for one in whole} == {"c1"}


async def test_queries_combine_and_page_backwards(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            for number in range(1, 6):
                await twin.ledger.open(request(number, created=T0 + number))
            page = await twin.ledger.query(LedgerQuery(caller="carol", limit=2))
            older = await twin.ledger.query(LedgerQuery(caller="carol", limit=2, before="r4"))
            ranged = await twin.ledger.query(
                LedgerQuery(thing_id="dtw:agent:lamp", name="toggle", start=T0 + 2, end=T0 + 4)
            )
            with pytest.raises(BadCursor):
                await twin.ledger.query(LedgerQuery(before="never"))

    assert [row.request_id for row in page] == ["r5", "r4"]
    assert [row.request_id for row in older] == ["r3", "r2"]
    assert [row.request_id for row in ranged] == ["r3", "r2"]


async def test_purging_takes_ended_rows_in_steps_and_never_reuses_numbers(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            for number in range(4):
                await twin.ledger.open(request(number))
            for number in range(3):
                await twin.ledger.advance(f"r{number}", State.CANCELLED, now=T0 + number)
            last = twin.ledger.last_seq
            steps = [await twin.ledger.purge(T0 + 10, limit=2) for _ in range(3)]
        async with opened() as twin:
            left = await twin.ledger.query(LedgerQuery())
            row, is_new = await twin.ledger.open(request(9, caller_ref="c1"))
            inbox = await twin.ledger.inbox("carol", after=0, limit=100)

    assert steps == [2, 1, 0]
    assert [one.request_id for one in left] == ["r3"]
    assert is_new
    assert row.seq > last
    assert [one.request_id for one in inbox] == ["r3", "r9"]


@pytest.mark.parametrize("value", [None, 0, "", [], {}, False, "é\u0000", 2**53 + 1, 1e300, {"a": [1, {"b": None}]}])
async def test_inputs_and_outputs_come_back_as_they_were(opened: OpenTwin, value: JSONValue) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.ledger.open(request(1, input=value))
            await twin.ledger.advance("r1", State.COMPLETED, now=T0, agent="agent", output=value)
            row = await twin.ledger.get("r1")

    assert row is not None
    assert (row.input, row.has_input, row.output) == (value, True, value)


async def test_a_request_that_cannot_be_stored_fails_alone(opened: OpenTwin) -> None:
    outcomes: dict[int, bool | str] = {}

    async def open_one(number: int, **more: object) -> None:
        try:
            outcomes[number] = (await twin.ledger.open(request(number, **more)))[1]
        except Exception as error:
            outcomes[number] = type(error).__name__

    with anyio.fail_after(30):
        async with opened() as twin:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(open_one, 1)
                tasks.start_soon(lambda: open_one(2, expires=2**70))
                tasks.start_soon(open_one, 3)
            left = await twin.ledger.waiting("agent", limit=10)

            assert (outcomes[1], outcomes[3]) == (True, True)
            assert isinstance(outcomes[2], str)
            assert sorted(row.request_id for row in left) == ["r1", "r3"]
            assert twin.failure is None


async def test_what_a_group_opens_repeats_and_advances_is_answered_one_by_one(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.ledger.open(request(1))
            outcomes = await asyncio.gather(
                twin.ledger.open(request(2)),
                twin.ledger.advance("r1", State.DELIVERED, now=T0 + S),
                twin.ledger.open(request(3, caller_ref="c2")),
                twin.ledger.open(request(4, caller_ref="c1", name="blink")),
                twin.ledger.open(request(2, caller_ref="c5")),
                twin.ledger.advance("r1", State.COMPLETED, now=T0 + 2 * S, agent="agent"),
                twin.ledger.advance("r1", State.RUNNING, now=T0 + 2 * S, agent="agent"),
                twin.ledger.open(request(6)),
                twin.ledger.open(request(7, caller_ref="c1")),
                twin.ledger.advance("r6", State.CANCELLED, now=T0 + S),
                return_exceptions=True,
            )
            whole = {row.request_id: row for row in await twin.ledger.query(LedgerQuery())}
            inbox = await twin.ledger.inbox("carol", after=0, limit=100)

    new, _, repeated, other, in_use, final, late, sixth, ended, cancelled = outcomes
    assert isinstance(new, tuple)
    assert isinstance(sixth, tuple)
    assert isinstance(ended, tuple)
    assert isinstance(final, list)
    assert isinstance(cancelled, list)
    assert repeated == (new[0], False)
    assert (new[1], sixth[1], ended[1]) == (True, True, False)
    assert [type(each) for each in (other, in_use, late)] == [Conflict, Conflict, IllegalStatus]
    assert ended[0] == whole["r1"]
    assert [step.state for step in whole["r1"].transitions] == [State.PENDING, State.DELIVERED, State.COMPLETED]
    assert {key: row.state for key, row in whole.items()} == {
        "r1": State.COMPLETED,
        "r2": State.PENDING,
        "r6": State.CANCELLED,
    }
    assert [status.seq for status in inbox] == sorted({status.seq for status in inbox})
    assert {final[-1].seq, cancelled[-1].seq} <= {status.seq for status in inbox}


async def test_a_step_that_was_undone_with_its_group_is_taken_once(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.ledger.open(request(1))
            delivered, refused = await asyncio.gather(
                twin.ledger.advance("r1", State.DELIVERED, now=T0 + S),
                twin.ledger.open(request(2, expires=2**70)),
                return_exceptions=True,
            )
            row = await twin.ledger.get("r1")

    assert isinstance(delivered, list)
    assert isinstance(refused, Exception)
    assert row is not None
    assert (row.state, row.attempts, len(row.transitions)) == (State.DELIVERED, 1, 2)


@pytest.mark.parametrize("length", [10, 5_000])
async def test_requests_of_any_size_advance_however_many_came_after_them(opened: OpenTwin, length: int) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            await twin.ledger.open(request(0, input="x" * length))
            await asyncio.gather(*(twin.ledger.open(request(number)) for number in range(1, 700)))
            first = await twin.ledger.advance("r0", State.RUNNING, now=T0, agent="agent")
            last = await twin.ledger.advance("r699", State.RUNNING, now=T0, agent="agent")
            again = await twin.ledger.advance("r0", State.COMPLETED, now=T0, agent="agent")

    assert [row.state for row in (*first, *last, *again)] == [
        *(State.DELIVERED, State.RUNNING),
        *(State.DELIVERED, State.RUNNING),
        State.COMPLETED,
    ]
    assert {len(str(row.input)) for row in (*first, *again)} == {length}
