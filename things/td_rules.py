"""What makes a document a Thing Description: every rule, and every breach reported at once with its JSON pointer."""

from typing import Any

from things.durations import td_seconds
from things.errors import Invalid, Problem
from things.schemas import compiled, pointer


def problems_of(document: Any, *, agent: bool = False) -> list[Problem]:
    """Everything wrong with `document` as a TD; with `agent`, forms and security may be missing."""
    if not isinstance(document, dict):
        return [Problem(pointer="", detail="a Thing Description is a JSON object")]
    found: list[Problem] = []
    if not isinstance(document.get("title"), str) or not document["title"]:
        found.append(Problem(pointer="/title", detail="a title (text) is needed"))
    if "@context" not in document:
        found.append(Problem(pointer="/@context", detail="an @context is needed"))
    for plural, schema_key in (("properties", None), ("actions", "input"), ("events", "data")):
        affordances = document.get(plural, {})
        if not isinstance(affordances, dict):
            found.append(Problem(pointer=pointer(plural), detail="must be an object of affordances by name"))
            continue
        for name, affordance in affordances.items():
            where = pointer(plural, name)
            if not isinstance(affordance, dict):
                found.append(Problem(pointer=where, detail="must be an object"))
                continue
            schema = affordance if schema_key is None else affordance.get(schema_key, {})
            if not isinstance(schema, dict):
                found.append(Problem(pointer=f"{where}/{schema_key}", detail="must be an object"))
                continue
            try:
                compiled(schema)
            except Invalid as error:
                found.append(Problem(pointer=where, detail=error.detail))
            for term in ("skep:expires", "skep:deadline", "skep:interval"):
                if term in affordance:
                    try:
                        td_seconds(affordance[term])
                    except Invalid as error:
                        found.append(Problem(pointer=f"{where}/{term}", detail=error.detail))
    return found
