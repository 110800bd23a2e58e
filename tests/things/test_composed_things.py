"""Things with parts: a description of each, joined by links, within bounds."""

from typing import Any

import pytest

from things.composed_things import MAX_LOOKED_UP, Wanted, check, instances
from things.errors import Invalid
from things.thing_model import UnknownModel


def model(*parts: tuple[str, str], **members: Any) -> dict[str, Any]:
    links = [{"rel": "tm:submodel", "href": href, "instanceName": name} for name, href in parts]
    document = {"@context": "https://www.w3.org/2022/wot/td/v1.1", "@type": "tm:ThingModel", "title": "A Thing"}
    return {**document, **({"links": links} if links else {}), **members}


NOSEC: dict[str, Any] = {"securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n"}


def test_a_thing_without_parts_is_one_description() -> None:
    made = instances("urn:m", {"urn:m": model()}.get, Wanted(agent=True))

    assert [td.document["links"] for td in made] == [[{"rel": "type", "href": "urn:m", "type": "application/tm+json"}]]


def test_parts_have_ids_below_the_whole_its_security_and_links_both_ways() -> None:
    known = {"urn:m": model(("a b", "urn:p")), "urn:p": model(title="Part {{N}}")}
    additions = {**NOSEC, "description": "whole", "links": [{"href": "https://a/", "rel": "next"}]}

    whole, part = instances("urn:m", known.get, Wanted(thing_id="urn:x", placeholders={"N": 1}, additions=additions))

    assert (whole.id, part.id, part.title) == ("urn:x", "urn:x:a%20b", "Part 1")
    assert {link["rel"]: link["href"] for link in whole.document["links"]} == {
        "type": "urn:m",
        "item": "urn:x:a%20b",
        "next": "https://a/",
    }
    assert {link["rel"]: link["href"] for link in part.document["links"]} == {"type": "urn:p", "collection": "urn:x"}
    assert (part.document["security"], "description" in part.document) == ("n", False)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"urn:m": model(("a", "urn:m"))}, "part of itself"),
        ({"urn:m": model(("a", "urn:n")), "urn:n": model(("b", "urn:m#x"))}, "part of itself"),
        ({"urn:m": model(("a", "urn:p"), ("a", "urn:q")), "urn:p": model()}, "one name"),
        ({f"urn:{n}" if n else "urn:m": model(("a", f"urn:{n + 1}")) for n in range(20)}, "too deep"),
        ({"urn:m": model(links=[{"rel": "tm:extends", "href": "urn:m"}])}, "includes itself"),
    ],
)
def test_what_cannot_be_composed_is_refused(known: dict[str, dict[str, Any]], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        instances("urn:m", known.get, Wanted(thing_id="urn:x", agent=True))


def test_a_part_that_is_not_known_is_refused_when_made_and_passed_over_when_checked() -> None:
    known = {"urn:m": model(("a", "urn:later"))}

    check("urn:m", known.get)
    with pytest.raises(UnknownModel, match="urn:later"):
        instances("urn:m", known.get, Wanted(thing_id="urn:x", agent=True))


def test_parts_that_multiply_are_read_within_a_bound() -> None:
    reads = 0

    def resolve(address: str) -> dict[str, Any]:
        nonlocal reads
        reads += 1
        level = int(address.rpartition(":")[2])
        return model(*[(str(number), f"urn:{level + 1}") for number in range(5)]) if level < 9 else model()

    for work in (
        lambda: check("urn:0", resolve),
        lambda: instances("urn:0", resolve, Wanted(thing_id="urn:x", agent=True)),
    ):
        reads = 0
        with pytest.raises(Invalid, match="includes more than"):
            work()
        assert reads == MAX_LOOKED_UP
