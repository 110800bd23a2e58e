"""What a kept session has missed becomes deliveries one by one, at a cost that does not grow with its filters."""

from collections import UserDict
from typing import cast

from bindings.mqtt.clients import ClientSession, PublicationEncoder
from bindings.mqtt.engines.seam import Publish, SubscribeOptions
from bindings.mqtt.missed import Rows, _deliveries
from runtime.ports import ByPattern, Pattern, StoredPublication
from things.addresses import Kind, TwinID

FILTERS = 1_000


class Looked(UserDict[str, SubscribeOptions]):
    """Filters that count how often one is looked at."""

    looks = 0

    def __getitem__(self, text: str) -> SubscribeOptions:
        self.looks += 1
        return super().__getitem__(text)


class Watcher:
    """As much of a client's session as deliveries are made from."""

    _encoder = PublicationEncoder()
    _is_5 = True
    delivery = ClientSession.delivery

    def is_own(self, row_id: int) -> bool:
        return row_id == 2


def missed(row_id: int, thing: str, payload: bytes = b"1") -> StoredPublication:
    twin = TwinID.parse(f"dtw:mill:{thing}")
    return StoredPublication(
        twin=twin,
        thing_id=str(twin),
        kind=Kind.EVENT,
        name="alarm",
        value=None,
        payload=payload,
        created=0,
        row_id=row_id,
    )


def made(rows: Rows, asked: ByPattern[str], filters: Looked) -> list[Publish | None]:
    return list(_deliveries(cast(ClientSession, Watcher()), rows, asked, filters))


def test_a_row_costs_a_look_at_the_filters_that_match_it() -> None:
    filters = Looked({f"f{n}": SubscribeOptions(qos=1) for n in range(FILTERS)})
    asked = ByPattern((Pattern("mill", f"t{n}"), f"f{n}") for n in range(FILTERS))
    rows = Rows(publications=[missed(n + 1, f"t{n % 50}") for n in range(100)], last_row=100, has_more=False)

    found = made(rows, asked, filters)

    assert [one and one.row_id for one in found] == [*range(1, 101)]
    assert filters.looks == 100


def test_filters_are_those_of_the_moment_and_begin_at_their_row() -> None:
    filters = Looked({name: SubscribeOptions(qos=1, subscription_id=n) for n, name in enumerate("abc", start=1)})
    asked = ByPattern((Pattern("mill"), name) for name in "abc")
    rows = Rows(publications=[missed(row, "pump") for row in (1, 2, 3)], last_row=3, has_more=False)
    deliveries = _deliveries(cast(ClientSession, Watcher()), rows, asked, filters)

    first = next(deliveries)
    filters.data["a"] = SubscribeOptions(qos=1, subscription_id=1, since_row=2)
    del filters.data["b"]
    second, third = deliveries

    assert [one and list(one.subscription_ids) for one in (first, second, third)] == [[1, 2, 3], [3], [1, 3]]


def test_the_first_delivery_behind_a_gap_says_so() -> None:
    filters = Looked({"f": SubscribeOptions(qos=1, since_row=1)})
    rows = Rows(publications=[missed(row, "pump") for row in (1, 2, 3)], last_row=3, has_more=False, gap=7)

    none, *found = made(rows, ByPattern([(Pattern("mill"), "f")]), filters)

    assert none is None
    assert [[value for name, value in one.user_properties if name == "gap"] for one in found if one] == [["7"], []]


def test_what_the_client_published_itself_is_left_out_for_filters_without_local() -> None:
    filters = Looked({"a": SubscribeOptions(qos=1, no_local=True)})
    asked = ByPattern((Pattern("mill"), name) for name in "ab")
    rows = Rows(publications=[missed(row, "pump") for row in (1, 2, 3)], last_row=3, has_more=False)

    assert [one and one.row_id for one in made(rows, asked, filters)] == [1, None, 3]
    filters["b"] = SubscribeOptions(qos=1)
    assert [one and one.row_id for one in made(rows, asked, filters)] == [1, 2, 3]
