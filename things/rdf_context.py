"""The `@context` of a Thing Description, as far as it says what names mean here; nothing that it names is fetched.

Known addresses stand for the vocabulary of `things.rdf_terms`, unknown ones for nothing: terms that only they define
are read as if they were the standard's. Prefixes, terms, `@vocab` and `@language` that stand in the document count.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from things.rdf_terms import PREFIXES, Term

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:\S", re.ASCII)
_LANGUAGE = re.compile(r"[A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*", re.ASCII)
_DEFAULT_LANGUAGE = "en"
"""Of titles and descriptions, by the standard's context."""
_REFERS = frozenset({"@id", "@vocab"})


@dataclass(frozen=True, slots=True)
class Context:
    """What the names of one description mean."""

    prefixes: Mapping[str, str]
    terms: Mapping[str, Term]
    language: str
    vocabulary: str | None
    """What its own `@vocab` says; None for the standard's."""

    def expanded(self, name: str) -> str | None:
        """The IRI that a compact or whole IRI stands for; None for a plain word."""
        prefix, colon, rest = name.partition(":")
        if not colon:
            return None
        if not rest.startswith("//") and prefix in self.prefixes:
            return self.prefixes[prefix] + rest
        return name if _SCHEME.match(name) else None


def context_of(document: Mapping[str, Any]) -> Context:
    """The context of a TD, which is valid."""
    given = document.get("@context")
    prefixes, defined = dict(PREFIXES), dict[str, Any]()
    language, vocabulary = _DEFAULT_LANGUAGE, None
    for item in given if isinstance(given, list) else [given]:
        if not isinstance(item, dict):
            continue
        for name, meaning in item.items():
            if name == "@language":
                language = meaning if is_language(meaning) else language
            elif name == "@vocab":
                vocabulary = meaning if isinstance(meaning, str) and _SCHEME.match(meaning) else vocabulary
            elif not name.startswith("@"):
                defined[name] = meaning
                iri = meaning.get("@id") if isinstance(meaning, dict) else meaning
                if isinstance(iri, str) and _SCHEME.match(iri):
                    prefixes[name] = iri
    context = Context(prefixes, {}, language, vocabulary)
    terms = {name: term for name, meaning in defined.items() if (term := _term(context, meaning)) is not None}
    return Context(prefixes, terms, language, vocabulary)


def is_language(value: object) -> bool:
    """Whether it is a language tag."""
    return isinstance(value, str) and _LANGUAGE.fullmatch(value) is not None


def _term(context: Context, meaning: object) -> Term | None:
    if isinstance(meaning, str):
        iri = context.expanded(meaning)
        return None if iri is None else Term(iri)
    if not isinstance(meaning, dict) or not isinstance(meaning.get("@id"), str):
        return None
    iri, type_ = context.expanded(meaning["@id"]), meaning.get("@type")
    if iri is None:
        return None
    if type_ in _REFERS:
        return Term(iri, words={})
    return Term(iri, datatype=context.expanded(type_) if isinstance(type_, str) else None)
