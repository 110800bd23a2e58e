"""Things made of Thing Models that are composed of others: a description of the whole, and one of each part.

The whole links to its parts (`item`) and each part to it (`collection`). Parts may be composed in turn; how far and of
how much is bounded for the whole together.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from things.addresses import encode_segment
from things.errors import Invalid, Problem
from things.messages import JSONValue
from things.td import ThingDescription
from things.thing_model import MAX_CHAIN, Resolver, ThingModel, UnknownModel

MAX_LOOKED_UP = 100
"""Models that are read for one Thing with all of its parts."""
_TD_JSON = "application/td+json"
_SHARED = frozenset({"@context", "security", "securityDefinitions"})
"""Additions that hold for the parts too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked of the instances of a model. Placeholders count for the parts too; parts have all their options."""

    thing_id: str | None = None
    placeholders: Mapping[str, JSONValue] = field(default_factory=dict)
    options: Collection[str] | None = None
    additions: Mapping[str, JSONValue] = field(default_factory=dict)
    agent: bool = False
    """As an agent publishes them: without forms and security of their own."""


def instances(address: str, resolve: Resolver, wanted: Wanted) -> Sequence[ThingDescription]:
    """The Thing and all of its parts, the Thing first. Raises as `ThingModel.composed` and `instantiate`, Invalid also
    for models that are parts of themselves, and for a composed Thing without an id."""
    return list(_Made(resolve, wanted).things(address, wanted.thing_id, None, ()))


def check(address: str, resolve: Resolver) -> None:
    """Raises Invalid if the model, with all it is composed of, includes itself or too much. What is not known yet is
    passed over, with everything behind it."""
    _Made(resolve, Wanted()).check(address, ())


class _Made:
    def __init__(self, resolve: Resolver, wanted: Wanted) -> None:
        self._resolve = resolve
        self._wanted = wanted
        self._looked_up = 0

    def check(self, address: str, chain: tuple[str, ...]) -> None:
        try:
            model = self._model(address, chain)
        except UnknownModel:
            return
        for _, href in model.submodels:
            self.check(href, (*chain, address))

    def _model(self, address: str, chain: tuple[str, ...]) -> ThingModel:
        if address in chain or len(chain) >= MAX_CHAIN:
            why = "is a part of itself" if address in chain else "is composed too deep"
            raise Invalid(f"a Thing Model {why}: {' → '.join((*chain, address))[:300]}")
        document = self._known(address)
        if document is None:
            raise UnknownModel(address)
        return ThingModel.of(document).composed(self._known)

    def things(
        self, address: str, thing_id: str | None, whole: str | None, chain: tuple[str, ...]
    ) -> Iterator[ThingDescription]:
        model = self._model(address, chain)
        parts = model.submodels
        if parts and thing_id is None:
            problem = Problem(pointer="/id", detail="is needed, since the Thing has parts", code="missing")
            raise Invalid("a Thing that has parts needs an id", [problem])
        named = [(f"{thing_id}:{encode_segment(name)}", href) for name, href in parts]
        if len({part_id for part_id, _ in named}) < len(named):
            raise Invalid("two parts of the Thing have one name (instanceName)")
        links: list[JSONValue] = [{"rel": "item", "href": part_id, "type": _TD_JSON} for part_id, _ in named]
        links += [{"rel": "collection", "href": whole, "type": _TD_JSON}] if whole is not None else []
        yield self._thing(model, address, thing_id, links, is_whole=whole is None)
        for part_id, href in named:
            yield from self.things(href, part_id, thing_id, (*chain, address))

    def _thing(
        self, model: ThingModel, address: str, thing_id: str | None, links: list[JSONValue], *, is_whole: bool
    ) -> ThingDescription:
        wanted = self._wanted
        shared = wanted.additions.keys() if is_whole else _SHARED & wanted.additions.keys()
        additions: dict[str, Any] = {name: wanted.additions[name] for name in shared}
        if thing_id is not None:
            additions["id"] = thing_id
        own = additions.get("links", [])
        made = model.instantiate(
            placeholders=wanted.placeholders,
            options=wanted.options if is_whole else None,
            model_href=address,
            additions={name: value for name, value in additions.items() if name != "links"},
            agent=wanted.agent,
        )
        if not links and not own:
            return made
        document = {**made.document, "links": [*made.document.get("links", ()), *links, *own]}
        return ThingDescription.of(document, agent=wanted.agent)

    def _known(self, address: str) -> Mapping[str, Any] | None:
        self._looked_up += 1
        if self._looked_up > MAX_LOOKED_UP:
            raise Invalid(f"a Thing Model with its parts includes more than {MAX_LOOKED_UP} others")
        return self._resolve(address)
