"""Thing Models: templates of Thing Descriptions, with parts of other models, optional affordances and placeholders.

    model = ThingModel.parse(text)
    complete = model.composed(resolve)            # tm:extends and tm:ref resolved
    td = complete.instantiate(placeholders={"SERIAL": "17"}, additions={"id": "urn:…", …})

Nothing is fetched: the caller hands in `resolve`, which knows other models by the addresses that this one
names. Depth, number and size of what is included are bounded.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from things.errors import Invalid, Problem, TDInvalid, TooLarge
from things.findings import Findings, Path
from things.jsontext import decode_unique, encode
from things.merge_patch import merged
from things.messages import JSONValue
from things.pointers import pointer, resolved, unescaped
from things.td import MAX_TD_BYTES, MAX_TD_DEPTH, ThingDescription
from things.td_rules import problems_of

THING_MODEL = "tm:ThingModel"
MAX_INCLUSIONS = 100
"""Other models, and parts of models, that one model may draw in."""
MAX_CHAIN = 10
"""How far models may include models."""

Resolver = Callable[[str], Mapping[str, Any] | None]
"""The document of a Thing Model by its address (without fragment), or None if it is not known."""

_PLURALS = ("properties", "actions", "events")
_PLACEHOLDER = re.compile(r"\{\{([^{}]{1,128})\}\}")
_ABSENT = object()
_OPTIONAL = re.compile(r"/(?:properties|actions|events)/[^/]+")
_RELATIONS = frozenset({"tm:extends", "tm:submodel"})
_EXCUSED = frozenset({"missing", "no-base", "undefined-security", "undefined-schema", "thing-model"})
"""Breaches of the rules for Thing Descriptions that are none in a model: what is still to come, and a model's own."""


class UnknownModel(Invalid):
    """A model names another one that the resolver does not know."""

    def __init__(self, address: str) -> None:
        super().__init__(f"the Thing Model {address[:200]!r} is not known")


class ThingModel:
    """A valid Thing Model. Never change what `document` returns."""

    __slots__ = ("document",)

    def __init__(self, document: dict[str, Any]) -> None:
        """Use `parse` or `of`; this trusts that `document` is valid."""
        self.document = document

    @classmethod
    def parse(cls, text: bytes | str) -> "ThingModel":
        """Raises TooLarge, TooDeep, Malformed, or TDInvalid with every problem."""
        return cls.of(decode_unique(text, max_bytes=MAX_TD_BYTES, max_depth=MAX_TD_DEPTH))

    @classmethod
    def of(cls, document: Any) -> "ThingModel":
        """The model that `document` is; raises TDInvalid."""
        problems = problems_of_model(document)
        if problems:
            raise TDInvalid(problems)
        return cls(document)

    @property
    def optional(self) -> frozenset[str]:
        """Pointers of the affordances that Things of this model may lack."""
        return frozenset(self.document.get("tm:optional", ()))

    @property
    def required(self) -> frozenset[str]:
        """Pointers of the affordances that every Thing of this model has."""
        return frozenset(_affordances(self.document)) - self.optional

    @property
    def placeholders(self) -> frozenset[str]:
        """Names of the placeholders to be filled in."""
        return frozenset(name for text in _texts(self.document) for name in _PLACEHOLDER.findall(text))

    @property
    def submodels(self) -> Sequence[tuple[str, str]]:
        """The models that a Thing of this one is composed of besides: a name for each, and its address. Things of them
        are things of their own."""
        links = [link for link in self.document.get("links", ()) if link.get("rel") == "tm:submodel"]
        return [
            (str(link.get("instanceName", index)), link["href"].partition("#")[0]) for index, link in enumerate(links)
        ]

    def lacking(self, td: ThingDescription) -> frozenset[str]:
        """Pointers of the affordances that `td` should have as a Thing of this model, and has not."""
        return self.required - frozenset(_affordances(td.document))

    def composed(self, resolve: Resolver) -> "ThingModel":
        """This model with everything it extends and refers to taken in; nothing of `tm:extends` or `tm:ref` is left.

        Raises Invalid for addresses that `resolve` does not know, parts that are not there and models that include
        themselves; TooLarge over the bounds.
        """
        document = _Composer(resolve).model(self.document, ())
        if len(encode(document)) > MAX_TD_BYTES:
            raise TooLarge(MAX_TD_BYTES, "the composed Thing Model")
        return ThingModel.of(document)

    def instantiate(
        self,
        *,
        placeholders: Mapping[str, JSONValue] | None = None,
        options: Collection[str] | None = None,
        model_href: str | None = None,
        additions: Mapping[str, JSONValue] | None = None,
        agent: bool = False,
    ) -> ThingDescription:
        """The Thing Description of one Thing of this (composed) model.

        `placeholders` fills in `{{NAME}}`: a text that is nothing but a placeholder becomes the value with its type,
        elsewhere the value is written into the text. `options` are the pointers of optional affordances to take; None
        takes all. `additions` is merged over the result (id, security, version.instance, forms by affordance, …);
        `model_href` becomes a link of relation `type`. Raises Invalid for placeholders without a value and options
        that are none, TDInvalid if what comes out is no Thing Description.
        """
        values = placeholders or {}
        missing = sorted(self.placeholders - values.keys())
        if missing:
            raise Invalid(
                f"the Thing Model needs values for {', '.join(missing)}",
                [
                    Problem(pointer=pointer("placeholders", name), detail="needs a value", code="missing")
                    for name in missing
                ],
            )
        for index, option in enumerate(options or ()):
            if option not in self.optional:
                problem = Problem(
                    pointer=pointer("options", index), detail="is not among the optional affordances", code="invalid"
                )
                raise Invalid(f"not among the optional affordances: {option[:200]!r}", [problem])
        document = _filled(self.document, values)
        document.pop("tm:optional", None)
        if options is not None:
            for path in self.optional - set(options):
                _, plural, name = path.split("/")
                document.get(plural, {}).pop(unescaped(name), None)
        document["@type"] = _thing_types(document["@type"])
        links = [link for link in document.pop("links", ()) if link.get("rel") not in _RELATIONS]
        links += [{"rel": "type", "href": model_href, "type": "application/tm+json"}] if model_href else []
        document |= {"links": links} if links else {}
        document = merged(document, dict(additions or {}))
        if "instance" not in document.get("version", {}):
            document.pop("version", None)  # that of the model alone says nothing of a Thing
        return ThingDescription.of(document, agent=agent)


def problems_of_model(document: Any) -> list[Problem]:
    """Everything wrong with `document` as a Thing Model.

    The rules are those of Thing Descriptions, except that nothing has to be there but `@context` and `@type`, that any
    text may hold placeholders, and that a null beside a `tm:ref` takes a member away.
    """
    found = Findings()
    if not isinstance(document, dict):
        found.add((), "a Thing Model is a JSON object", "type")
        return found.problems
    types = document.get("@type")
    if THING_MODEL not in (types if isinstance(types, list) else [types]):
        found.add(("@type",), f"a Thing Model is of type {THING_MODEL}", "type")
    if "@context" not in document:
        found.add(("@context",), "a Thing Model names its @context", "missing")
    _check_optional(found, document)
    version = document.get("version", {})
    fits = isinstance(version, dict) and "instance" not in version and isinstance(version.get("model", ""), str)
    if not fits and not _has_placeholder(version):
        found.add(("version",), "must be an object with the text member model, and without instance", "type")
    _check_links(found, document)
    _check_members(found, (), document)
    plain = _without_nulls(document)
    for problem in problems_of(plain | {"title": plain.get("title", "")}, agent=True):
        if problem.code not in _EXCUSED and problem.pointer != "/version" and not _left_open(plain, problem):
            found.problems.append(problem)
    return found.problems


def _check_optional(found: Findings, document: dict[str, Any]) -> None:
    optional = document.get("tm:optional", [])
    if not isinstance(optional, list):
        found.add(("tm:optional",), "must be a list of JSON pointers to affordances", "type")
        return
    for index, item in enumerate(optional):
        if not isinstance(item, str) or not _OPTIONAL.fullmatch(item):
            found.add(("tm:optional", index), "must be a JSON pointer such as /properties/flow", "type")


def _check_links(found: Findings, document: dict[str, Any]) -> None:
    links = document.get("links")
    extends = 0
    for index, link in enumerate(links if isinstance(links, list) else ()):
        relation = link.get("rel") if isinstance(link, dict) else None
        if not isinstance(relation, str):
            continue
        if _has_placeholder(relation):
            found.add(("links", index, "rel"), "a relation holds no placeholder", "placeholder")
        elif relation.startswith("tm:") and relation not in _RELATIONS:
            found.add(("links", index, "rel"), f"is none of {', '.join(sorted(_RELATIONS))}", "type")
        elif relation == "tm:extends":
            extends += 1
            if extends > 1:
                found.add(("links", index, "rel"), "a Thing Model extends one other at most", "repeated")
        if relation in _RELATIONS and not isinstance(link.get("href"), str):
            found.add(("links", index, "href"), "names the other Thing Model (text)", "missing")


def _check_members(found: Findings, at: Path, value: Any) -> None:
    """Names hold no placeholders, and `tm:ref` is an address with a pointer."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_members(found, (*at, index), item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if _PLACEHOLDER.search(name):
                found.add((*at, name), "placeholders stand in values, not in names", "placeholder")
            if name == "tm:ref":
                if not isinstance(item, str) or "#/" not in item:
                    found.add((*at, name), "must be an address with a JSON pointer: MODEL#/properties/NAME", "type")
            elif name == "forms" and item == []:
                found.add((*at, name), "must hold at least one form", "empty")
            elif name != "enum":
                _check_members(found, (*at, name), item)


def _left_open(document: Any, problem: Problem) -> bool:
    """Whether a placeholder stands where the problem is; it can become any value but no object and no list."""
    if problem.code in ("shape", "context"):
        return False
    try:
        value = _part(document, problem.pointer)
    except Invalid:
        return False
    if isinstance(value, list) and problem.code in ("op", "language", "repeated"):
        return any(map(_has_placeholder, value))
    return _has_placeholder(value)


def _has_placeholder(value: Any) -> bool:
    return isinstance(value, str) and _PLACEHOLDER.search(value) is not None


def _without_nulls(value: Any, *, within_ref: bool = False) -> Any:
    if isinstance(value, list):
        return [_without_nulls(item, within_ref=within_ref) for item in value]
    if not isinstance(value, dict):
        return value
    within = within_ref or "tm:ref" in value
    return {
        name: _without_nulls(item, within_ref=within) for name, item in value.items() if not (within and item is None)
    }


class _Composer:
    """Takes other models in, and counts them."""

    def __init__(self, resolve: Resolver) -> None:
        self.resolve = resolve
        self.inclusions = 0

    def model(self, document: Mapping[str, Any], chain: tuple[str, ...]) -> dict[str, Any]:
        """`document` with what it extends below it and its references replaced."""
        own = self.parts(document, document, chain)
        links = own.get("links", [])
        bases = [link["href"] for link in links if link.get("rel") == "tm:extends"]
        if not bases:
            return dict(own)
        rest = [link for link in links if link.get("rel") != "tm:extends"]
        own = {name: value for name, value in own.items() if name != "links"} | ({"links": rest} if rest else {})
        address = bases[0].partition("#")[0]
        base = self.model(self.included(address, chain), (*chain, address))
        base.pop("links", None)
        optional = list(dict.fromkeys([*base.get("tm:optional", ()), *own.get("tm:optional", ())]))
        result: dict[str, Any] = merged(base, own)
        return result | ({"tm:optional": optional} if optional else {})

    def parts(self, value: Any, document: Mapping[str, Any], chain: tuple[str, ...]) -> Any:
        """`value`, a part of `document`, with every `tm:ref` replaced by what it refers to, changed by its siblings."""
        if isinstance(value, list):
            return [self.parts(item, document, chain) for item in value]
        if not isinstance(value, Mapping):
            return value
        inner = {
            name: item if name == "enum" else self.parts(item, document, chain)
            for name, item in value.items()
            if name != "tm:ref"
        }
        if "tm:ref" not in value:
            return inner
        address, _, path = value["tm:ref"].partition("#")
        if address:
            source, link = self.included(address, chain), address
        else:
            source, link = document, f"#{path} of {chain[-1] if chain else 'this model'}"
            self.count(link, chain)
        return merged(self.parts(_part(source, path), source, (*chain, link)), inner)

    def included(self, address: str, chain: tuple[str, ...]) -> Mapping[str, Any]:
        """Another model's document."""
        self.count(address, chain)
        document = self.resolve(address)
        if document is None:
            raise UnknownModel(address)
        problems = problems_of_model(document)
        if problems:
            raise TDInvalid(problems)
        return document

    def count(self, link: str, chain: tuple[str, ...]) -> None:
        self.inclusions += 1
        if self.inclusions > MAX_INCLUSIONS or len(chain) >= MAX_CHAIN or chain.count(link) > 0:
            why = "includes itself" if link in chain else "includes too much"
            raise Invalid(f"a Thing Model {why}: {' → '.join((*chain, link))[:300]}")


def _part(document: Any, path: str) -> Any:
    """What `path`, a JSON pointer, leads to."""
    found = resolved(document, path, _ABSENT)
    if found is _ABSENT:
        raise Invalid(f"there is nothing at {path[:200]!r}")
    return found


def _affordances(document: Mapping[str, Any]) -> Iterator[str]:
    for plural in _PLURALS:
        for name in document.get(plural, {}):
            yield pointer(plural, name)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)


def _filled(value: Any, values: Mapping[str, JSONValue]) -> Any:
    if isinstance(value, dict):
        return {name: _filled(item, values) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    if not isinstance(value, str):
        return value
    whole = _PLACEHOLDER.fullmatch(value)
    return values[whole[1]] if whole else _PLACEHOLDER.sub(lambda match: _written(values[match[1]]), value)


def _written(value: JSONValue) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def _thing_types(types: Any) -> Any:
    """`@type` of a Thing of the model."""
    rest = [type_ for type_ in (types if isinstance(types, list) else [types]) if type_ != THING_MODEL]
    return ["Thing", *(type_ for type_ in rest if type_ != "Thing")]
