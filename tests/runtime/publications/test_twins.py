"""Twin TDs as consumers get them: the same whether derived or remembered, fresh after every change that matters."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from authz.documents import RuleDocument
from runtime.publications import twins
from runtime.publications.twins import TwinViews
from tests.support import PUMP, Skep, skep
from things.identity import AccountType, Principal
from things.parsing import parsed
from things.places import CALLED_AT, Place, Urls
from things.td import ThingDescription
from things.twin_td import FormsOf

pytestmark = pytest.mark.anyio

ANN = Principal(account="ann", type=AccountType.CONSUMER, role="viewer")
BOB = Principal(account="bob", type=AccountType.CONSUMER, role="manager")
URLS = Urls(base="https://gateway:8443")
THINGS = [f"dtw:works:pump-{number}" for number in range(8)]


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Skep]:
    async with skep(tmp_path) as running:
        for number, thing_id in enumerate(THINGS):
            td = ThingDescription.of({**PUMP, "title": f"Pump {number}"}, agent=True)
            await running.running.stores.twin.directory.put(thing_id, td, agent="works")
        for principal in (ANN, BOB):
            await running.add(principal.account, role=principal.role)
        yield running


def _no_forms(urls: Urls) -> dict[str, FormsOf]:
    return {}


def views(runtime: Skep) -> TwinViews:
    stores = runtime.running.stores
    return TwinViews(stores.twin.directory, stores.authorizer, forms_of=_no_forms, urls=lambda place: URLS)


async def test_a_remembered_description_is_the_derived_one(runtime: Skep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "MAX_READY_BYTES", 5_000)
    all_ = views(runtime)

    derived = [all_.document(thing_id, ANN) for thing_id in THINGS]
    compressed = [all_.document(thing_id, ANN) for thing_id in THINGS]
    ready = [all_.document(THINGS[-1], ANN), all_.document(THINGS[-1], ANN)]

    assert derived == compressed
    assert ready == [derived[-1], derived[-1]]
    assert [td and td["title"] for td in derived] == [f"Pump {number}" for number in range(8)]


async def test_nothing_is_lost_when_all_memory_is_used_up(runtime: Skep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "MAX_READY_BYTES", 1)
    monkeypatch.setattr(twins, "MAX_COMPRESSED_BYTES", 1)
    all_ = views(runtime)

    found = [[all_.document(thing_id, ANN) for thing_id in THINGS] for _ in range(2)]

    assert found[0] == found[1]


async def test_principals_do_not_get_each_others_descriptions(runtime: Skep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "MAX_READY_BYTES", 1)
    all_ = views(runtime)
    for _ in range(2):
        viewed, managed = all_.document(THINGS[0], ANN), all_.document(THINGS[0], BOB)
        assert viewed is not None
        assert managed is not None
        assert viewed["properties"]["target"].get("readOnly") is True
        assert "readOnly" not in managed["properties"]["target"]
        assert "actions" not in viewed
        assert "actions" in managed


async def test_a_new_publish_or_overlay_is_seen_at_once(runtime: Skep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "MAX_READY_BYTES", 1)
    directory = runtime.running.stores.twin.directory
    all_ = views(runtime)
    titles = []
    for change in (None, "published", "overlaid", "overlay dropped"):
        if change == "published":
            td = ThingDescription.of({**PUMP, "title": "New"}, agent=True)
            await directory.put(THINGS[0], td, agent="works")
        elif change is not None:
            await directory.set_overlay(THINGS[0], {"title": "Ours" if change == "overlaid" else None})
        for thing_id in THINGS[:3]:
            all_.document(thing_id, ANN)
        td_now = all_.document(THINGS[0], ANN)
        titles.append(td_now and td_now["title"])

    assert titles == ["Pump 0", "New", "Ours", "New"]


async def test_rights_to_single_affordances_shape_the_description(runtime: Skep) -> None:
    stores = runtime.running.stores
    all_ = views(runtime)
    before = all_.document(THINGS[0], ANN)
    admin = Principal(account="root", type=AccountType.CONSUMER, role="admin")
    hidden = {"id": "hidden", "effect": "deny", "thing": THINGS[0], "kind": "property", "name": "flow"}
    await stores.authorizer.put_rule(parsed(RuleDocument, hidden), admin)
    after, other = all_.document(THINGS[0], ANN), all_.document(THINGS[1], ANN)
    await stores.authorizer.remove_rule("hidden", admin)

    assert before is not None
    assert after is not None
    assert other is not None
    assert set(before["properties"]) - set(after["properties"]) == {"flow"}
    assert "flow" in other["properties"]
    assert all_.document(THINGS[0], ANN) == before


async def test_addresses_are_told_once_they_are_known(runtime: Skep) -> None:
    stores, bases = runtime.running.stores, [None, "https://gateway:8443"]
    all_ = TwinViews(
        stores.twin.directory, stores.authorizer, forms_of=_no_forms, urls=lambda place: Urls(base=bases[0])
    )

    early = all_.document(THINGS[0], ANN)
    del bases[0]
    late = all_.document(THINGS[0], ANN)

    assert early is not None
    assert late is not None
    assert "links" not in early
    assert {link["href"].partition("/things")[0] for link in late["links"]} == {"https://gateway:8443"}


async def test_every_caller_is_told_the_addresses_that_hold_where_it_is(runtime: Skep) -> None:
    stores = runtime.running.stores
    found = {None: URLS, Place("10.9.9.1"): Urls(base="https://10.9.9.1:8443")}
    all_ = TwinViews(stores.twin.directory, stores.authorizer, forms_of=_no_forms, urls=lambda place: found[place])

    general = all_.publication(THINGS[0], ANN)
    near = all_.publication(THINGS[0], ANN, Place("10.9.9.1"))
    token = CALLED_AT.set(Place("10.9.9.1"))
    called = all_.document(THINGS[0], ANN)
    CALLED_AT.reset(token)
    again = all_.document(THINGS[0], ANN)

    assert general is not None
    assert near is not None
    assert b"10.9.9.1" not in general.payload
    assert near.value == called != general.value == again
