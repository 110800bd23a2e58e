"""Thing Descriptions as RDF: the statements of a TD, as N-Triples, by the part of the Thing that they are about.

A TD is a tree, and so is what is made of it: its Thing has the id as IRI, everything below it is a blank node of this
TD alone. By parts, what a caller may not see of a Thing can be left out. What JSON-LD would lose is kept: a unit such
as `%`, which is no IRI, stays a text. Pure; nothing is fetched, and no text of a TD can end a statement early.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from things.addresses import Kind
from things.rdf_context import Context, context_of, is_language
from things.rdf_terms import JSON_SCHEMA, RDF, THING, XSD, Scope, Term

Part = tuple[Kind, str] | None
"""An affordance of the Thing; None is the Thing itself."""

_KINDS = {"properties": Kind.PROPERTY, "actions": Kind.ACTION, "events": Kind.EVENT}
_NOT_IN_IRIS = re.compile(r"[\x00-\x20<>\"{}|^`\\\x7f-\x9f]")
"""What would end one early, or is never in one: it is encoded. Whether the rest is as RFC 3987 has it is not judged."""
_IRI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:.", re.ASCII | re.S)
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
_NAME = re.compile(r"[A-Za-z_][\w\-]*", re.ASCII)
_PASSED_OVER = frozenset({"@context", "id", "@id", "@index", "@value", "@language"})


def statements(document: Mapping[str, Any], thing_id: str, label: str) -> dict[Part, list[str]]:
    """The statements of a valid TD by part, each as subject, predicate and object of a line of N-Triples.

    `label` begins the names of its blank nodes: letters and digits, and another for each TD that is read beside it.
    """
    return _Statements(context_of(document), label).of(document, thing_id)


def lines(found: Mapping[Part, Sequence[str]]) -> str:
    """All statements as N-Triples, those about one node together."""
    of_nodes: dict[str, list[str]] = {}
    for part in found.values():
        for statement in part:
            of_nodes.setdefault(statement.partition(" ")[0], []).append(f"{statement} .\n")
    return "".join(line for of_node in of_nodes.values() for line in of_node)


def as_iri(text: str) -> str | None:
    """`text` as an IRI of N-Triples, what cannot stand in one encoded; None if it has no scheme."""
    if not _IRI.match(text):
        return None
    return f"<{_NOT_IN_IRIS.sub(_encoded, text)}>"


def _encoded(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


class _Statements:
    def __init__(self, context: Context, label: str) -> None:
        self._context = context
        self._label = label
        self._nodes = 0
        self._lines: list[str] = []

    def of(self, document: Mapping[str, Any], thing_id: str) -> dict[Part, list[str]]:
        subject = as_iri(thing_id) or self._node()
        found: dict[Part, list[str]] = {}
        self._lines = found[None] = []
        self._members(subject, THING, {name: value for name, value in document.items() if name not in _KINDS})
        for plural, kind in _KINDS.items():
            term, affordances = THING.terms[plural], document.get(plural)
            for name, definition in affordances.items() if isinstance(affordances, dict) else ():
                self._lines = found[kind, name] = []
                self._named(subject, term, name, definition)
        return found

    # ------------------------------------------------------------ objects

    def _members(self, subject: str, scope: Scope, members: Mapping[str, Any]) -> None:
        if scope.class_ is not None:
            self._say(subject, RDF + "type", f"<{scope.class_}>")
        for type_ in _listed(members.get("@type")):
            iri = self._meant(type_, scope.vocabulary) if isinstance(type_, str) else None
            if iri is not None:
                self._say(subject, RDF + "type", iri)
        for name, value in members.items():
            if name == "@type" or name in _PASSED_OVER:
                continue
            term = scope.terms.get(name) or self._context.terms.get(name) or self._other(name, scope)
            if term is not None:
                self._member(subject, term, value)

    def _other(self, name: str, scope: Scope) -> Term | None:
        """A member that neither the standard nor the context defines by itself."""
        iri = self._context.expanded(name)
        if iri is not None:
            return Term(iri)
        # Of the data of a schema's keywords, and of everything else, the vocabulary that the place has.
        return Term((self._context.vocabulary or scope.vocabulary) + name) if _NAME.fullmatch(name) else None

    def _member(self, subject: str, term: Term, value: Any) -> None:
        if term.by_name is not None and isinstance(value, dict):
            for name, item in value.items():
                self._named(subject, term, name, item)
        elif term.languages and isinstance(value, dict):
            for language, text in value.items():
                if isinstance(text, str):
                    self._say(subject, term.iri, _literal(text, language=language))
        else:
            for item in _listed(value):
                self._value(subject, term, item)

    def _named(self, subject: str, term: Term, name: str, value: Any) -> None:
        if not isinstance(value, dict) or term.scope is None or term.by_name is None:
            return
        node = self._node()
        self._say(subject, term.iri, node)
        self._say(node, term.by_name, _literal(name))
        self._members(node, term.scope, value)

    # ------------------------------------------------------------ values

    def _value(self, subject: str, term: Term, value: Any) -> None:
        if value is None:
            return
        if isinstance(value, dict):
            self._object(subject, term, value)
        elif isinstance(value, list):
            for item in value:
                self._value(subject, term, item)
        elif isinstance(value, str):
            self._say(subject, term.iri, self._text(term, value))
        else:
            self._say(subject, term.iri, _literal_of(value))

    def _object(self, subject: str, term: Term, value: Mapping[str, Any]) -> None:
        if isinstance(value.get("@id"), str) and len(value) == 1:
            iri = as_iri(self._context.expanded(value["@id"]) or value["@id"])
            if iri is not None:
                self._say(subject, term.iri, iri)
            return
        if "@value" in value:
            held, language, type_ = value["@value"], value.get("@language"), value.get("@type")
            datatype = self._context.expanded(type_) if isinstance(type_, str) else None
            if isinstance(held, str):
                self._say(subject, term.iri, _literal(held, datatype, language))
            elif held is not None and not isinstance(held, dict | list):
                self._say(subject, term.iri, _literal_of(held))
            return
        node = self._node()
        self._say(subject, term.iri, node)
        # What no vocabulary of ours describes, such as the parts of a constant, goes on in that of its place.
        self._members(node, term.scope or _PLAIN, value)

    def _text(self, term: Term, text: str) -> str:
        if term.words is not None:
            iri = term.words.get(text) or self._context.expanded(text)
            return (as_iri(iri) if iri is not None else None) or _literal(text)
        return _literal(text, term.datatype, self._context.language if term.language else None)

    def _meant(self, type_: str, vocabulary: str) -> str | None:
        iri = self._context.expanded(type_)
        if iri is None:
            term = self._context.terms.get(type_)
            iri = term.iri if term is not None else (self._context.vocabulary or vocabulary) + type_
        return as_iri(iri)

    # ------------------------------------------------------------ lines

    def _node(self) -> str:
        self._nodes += 1
        return f"_:{self._label}n{self._nodes}"

    def _say(self, subject: str, predicate: str, value: str) -> None:
        iri = _USUAL.get(predicate) or as_iri(predicate)
        if iri is not None:
            self._lines.append(f"{subject} {iri} {value}")


def _terms(scope: Scope, seen: set[Scope]) -> Iterator[Term]:
    if scope not in seen:
        seen.add(scope)
        for term in scope.terms.values():
            yield term
            if term.scope is not None:
                yield from _terms(term.scope, seen)


_PLAIN = Scope(JSON_SCHEMA)
_USUAL = {term.iri: f"<{term.iri}>" for term in _terms(THING, set())} | {RDF + "type": f"<{RDF}type>"}
"""Predicates that nearly all statements have."""


def _listed(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
    elif value is not None:
        yield value


def _literal(text: str, datatype: str | None = None, language: object = None) -> str:
    quoted = f'"{text.translate(_ESCAPED)}"'
    if is_language(language):
        return f"{quoted}@{language}"
    iri = as_iri(datatype) if datatype is not None else None
    return quoted if iri is None else f"{quoted}^^{iri}"


def _literal_of(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return _literal("true" if value else "false", XSD + "boolean")
    if isinstance(value, int):
        return _literal(str(value), XSD + "integer")
    return _literal(repr(value), XSD + "double")
