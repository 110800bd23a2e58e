"""Our vocabulary as JSON-LD: the context that Thing Descriptions may name, and in its graph what each term means."""

from typing import Any

from things.vocabulary import NAMESPACE, PREFIX, WORDS, ActionType, DeviceType, PropertyType, ServiceType, Term, Unit

_MEANINGS: dict[Term, tuple[str, str | None]] = {
    # term: what it means, and the type of its values where they are not plain JSON
    Term.EXPIRES: ("How long a request may wait for its agent; 0 is never queued.", None),
    Term.DEADLINE: ("How long the agent may take from delivery, or from its last word.", None),
    Term.INTERVAL: ("How often the agent means to publish.", None),
    Term.ONLINE: ("Whether the agent of the Thing is connected.", "xsd:boolean"),
    Term.LAST_SEEN: ("When the agent of the Thing was last heard of.", "xsd:dateTime"),
    Term.AGENT: ("The account that speaks for the Thing.", None),
    Term.SOURCE_ID: ("The id that the Thing Description of the agent gives the Thing.", "@id"),
    Term.DERIVED_FROM: ("The Things that the values of the Thing were computed of.", "@id"),
    Term.HISTORY: ("The stored values and events of the Thing.", "@id"),
    Term.REQUESTS: ("The requests made of the Thing and their states.", "@id"),
}
_CLASSES = {
    DeviceType: "a type of device",
    PropertyType: "a type of property or event",
    ActionType: "a type of action",
    ServiceType: "a type of service",
}


def _terms() -> list[dict[str, Any]]:
    terms: list[dict[str, Any]] = [
        {"@id": str(term), "@type": "rdf:Property", "rdfs:comment": meaning} for term, (meaning, _) in _MEANINGS.items()
    ]
    for kind in WORDS:
        for word in kind:
            entry = {"@id": str(word), "@type": "rdfs:Class", "rdfs:label": word.title_text}
            entry["rdfs:comment"] = _CLASSES[kind]
            terms.append(entry | ({"skos:altLabel": word.known_as} if word.known_as else {}))
    for unit in Unit:
        entry = {"@id": str(unit), "@type": "skep:Unit", "rdfs:label": unit.symbol or unit.name.lower()}
        terms.append(entry | ({"skos:altLabel": unit.known_as} if unit.known_as else {}))
    return terms


CONTEXT: dict[str, Any] = {
    "@context": {
        "@version": 1.1,
        PREFIX: NAMESPACE,
        "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
        "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
        "skos": "http://www.w3.org/2004/02/skos/core#",
        "xsd": "http://www.w3.org/2001/XMLSchema#",
        **{str(term): {"@id": str(term), "@type": type_} for term, (_, type_) in _MEANINGS.items() if type_},
    },
    "@graph": _terms(),
}
"""The document served as `/vocabulary/skep.jsonld`."""
