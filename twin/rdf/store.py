"""The statements of all descriptions in memory, and what one caller sees of them; runs in the index process.

A Thing's statements lie in graphs by share, so that a caller with one right for all Things is answered from a few
graphs as they are. What differs is added to a graph of its own, or taken away: `seen_by` changes the store and belongs
into a process that ends with the question.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json
from pyoxigraph import NamedNode, Quad, RdfFormat, Store, parse

from things.addresses import TwinID, is_twin
from things.rdf import statements
from things.twin_td import told_of
from twin.rdf.parts import Share, share_of, spelled

MAX_STATEMENTS = 3_000_000
"""Of a directory that can be asked: some 1.1 GB."""

_GRAPHS = {share: f"urn:skep:share:{share.value}" for share in Share}
_ENTRIES = "urn:skep:entries"
"""Of what no agent speaks for, which is seen whole or not at all."""
_ADDED = "urn:skep:added"


@dataclass(frozen=True, slots=True)
class Seen:
    """A store as one caller sees it: as the union of these graphs, or of all."""

    store: Store
    graphs: Sequence[NamedNode] | None


class IndexStore:
    """Statements by Thing; what is put again replaces what was there."""

    def __init__(self) -> None:
        self._store = Store()
        self._parts: dict[str, bytes] = {}
        """By thing id, packed: its statements as N-Quads by part, with their share."""
        self._put = 0
        self.size = 0
        """How many statements; the library would count them anew each time."""

    def put(self, thing_id: str, told: Mapping[str, Any]) -> None:
        """Index a description: `{"td": text, "agent", "overlay", "registration"}`."""
        self.remove(thing_id)
        document = _document(thing_id, told)
        self._put += 1
        parts: dict[str, tuple[int, str]] = {}
        for part, found in statements(document, thing_id, f"t{self._put:x}").items():
            share = share_of(part, document)
            graph = _GRAPHS[share] if told["agent"] is not None else _ENTRIES
            parts[spelled(part)] = share.value, "".join(f"{statement} <{graph}> .\n" for statement in found)
        self._parts[thing_id] = zlib.compress(to_json(parts), 1)
        self._store.bulk_extend(_quads(text for _, text in parts.values()))
        self.size += _count(parts)

    def remove(self, thing_id: str) -> None:
        """Forget a description, if there is one."""
        packed = self._parts.pop(thing_id, None)
        if packed is not None:
            parts = _unpacked(packed)
            self.size -= _count(parts)
            for quad in _quads(text for _, text in parts.values()):
                self._store.remove(quad)

    def seen_by(self, sight: Mapping[str, Any]) -> Seen:
        """What a caller sees: `{"usual": share of every twin, "entries": of all others or none, "others": {thing id:
        share, or the parts that are seen}}`."""
        usual, entries, others = Share(sight["usual"]), bool(sight["entries"]), sight["others"]
        if usual is Share.WHOLE and entries and not others:
            return Seen(self._store, None)
        for thing_id, seen in others.items():
            packed = self._parts.get(thing_id)
            if packed is not None:
                self._differ(packed, seen, usual, entries)
        names = [_GRAPHS[share] for share in Share if share in usual and share.bit_count() == 1]
        graphs = [NamedNode(name) for name in (*names, *([_ENTRIES] if entries else []), _ADDED)]
        # Each graph more is one more to look into for each step of a query.
        return Seen(self._store, [graph for graph in graphs if self._store.contains_named_graph(graph)])

    def _differ(self, packed: bytes, seen: Any, usual: Share, entries: bool) -> None:
        for name, (bit, text) in _unpacked(packed).items():
            is_usual = entries if text.endswith(f" <{_ENTRIES}> .\n") else bool(usual & bit)
            is_seen = bool(seen & bit) if isinstance(seen, int) else name in seen
            if is_usual and not is_seen:
                for quad in _quads([text]):
                    self._store.remove(quad)
            elif is_seen and not is_usual:
                added = NamedNode(_ADDED)
                self._store.bulk_extend(
                    Quad(quad.subject, quad.predicate, quad.object, added) for quad in _quads([text])
                )


def _document(thing_id: str, told: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is indexed of a description. Of a twin, what does not differ from caller to caller but by being hidden."""
    document = from_json(told["td"])
    if told["agent"] is None or not is_twin(thing_id):
        document = {**document, **told["overlay"]}
    else:
        document = told_of(document, TwinID.parse(thing_id), told["overlay"])
    return {**document, "registration": told["registration"]}


def _quads(texts: Iterable[str]) -> Iterable[Quad]:
    # Not `load`, which would give the blank nodes other names: then they could not be taken out again.
    return parse("".join(texts).encode(), RdfFormat.N_QUADS, lenient=True)


def _count(parts: Mapping[str, tuple[int, str]]) -> int:
    return sum(text.count("\n") for _, text in parts.values())


def _unpacked(packed: bytes) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = from_json(zlib.decompress(packed))
    return found
