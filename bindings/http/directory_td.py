"""The directory's own description, as a Thing Directory of W3C WoT Discovery."""

from typing import Any

from bindings.http.exchange import JSON, LD_JSON, MERGE_PATCH, TD_JSON
from things.twin_td import DISCOVERY

SPARQL, SPARQL_RESULTS = "application/sparql-query", "application/sparql-results+json"


def directory_td(base: str) -> dict[str, Any]:
    """The TD of the directory (`@type: ThingDirectory`)."""

    def form(href: str, method: str, op: str, **more: Any) -> dict[str, Any]:
        return {"href": f"{base}{href}", "htv:methodName": method, "op": op, **more}

    def answer(status: int, media_type: str | None = None) -> dict[str, Any]:
        response: dict[str, Any] = {"htv:statusCodeValue": status, "contentType": media_type or TD_JSON}
        return {"response": response}

    def search(language: str) -> dict[str, Any]:
        return {
            "title": f"Search by {language}",
            "uriVariables": {"query": {"type": "string"}},
            "output": {"type": "array"},
            "safe": True,
            "idempotent": True,
            "synchronous": True,
            "forms": [form(f"/search/{language.lower()}?query={{query}}", "GET", "invokeaction", **answer(200, JSON))],
        }

    one = "/things/{id}"
    variable = {"id": {"type": "string", "title": "Id of the Thing, percent-encoded"}}
    events = {
        f"thing{word.capitalize()}": {
            "title": f"A Thing was {word}",
            "uriVariables": {"diff": {"type": "boolean"}},
            "data": {"type": "object"},
            "forms": [form(f"/events/thing_{word}{{?diff}}", "GET", "subscribeevent", subprotocol="sse")],
        }
        for word in ("created", "updated", "deleted")
    }
    return {
        "@context": [
            "https://www.w3.org/2019/wot/td/v1",
            "https://www.w3.org/2022/wot/td/v1.1",
            DISCOVERY,
            {"htv": "http://www.w3.org/2011/http#"},
        ],
        "@type": "ThingDirectory",
        "id": "urn:skep:directory",
        "title": "Directory of Things",
        "version": {"instance": "1.0.0"},
        "securityDefinitions": {
            "bearer": {"scheme": "bearer", "in": "header", "name": "Authorization", "format": "jwt", "alg": "EdDSA"},
            "basic": {"scheme": "basic", "in": "header", "name": "Authorization"},
        },
        # Either will do, and few clients know `combo`: what all of them understand is asked for.
        "security": ["bearer"],
        "properties": {
            "things": {
                "title": "All Things",
                "type": "array",
                "items": {"type": "object"},
                "readOnly": True,
                "uriVariables": {
                    "offset": {"type": "integer", "minimum": 0},
                    "limit": {"type": "integer", "minimum": 1},
                    "format": {"type": "string", "enum": ["array", "collection"]},
                },
                "forms": [form("/things{?offset,limit,format}", "GET", "readproperty", contentType=LD_JSON)],
            }
        },
        "actions": {
            "createThing": {
                "title": "Create a Thing that has an id",
                "uriVariables": variable,
                "input": {"type": "object"},
                "synchronous": True,
                "forms": [form(one, "PUT", "invokeaction", contentType=TD_JSON, **answer(201))],
            },
            "createAnonymousThing": {
                "title": "Create a Thing without an id",
                "input": {"type": "object"},
                "synchronous": True,
                "forms": [form("/things", "POST", "invokeaction", contentType=TD_JSON, **answer(201))],
            },
            "retrieveThing": {
                "title": "Retrieve a Thing",
                "uriVariables": variable,
                "output": {"type": "object"},
                "safe": True,
                "idempotent": True,
                "synchronous": True,
                "forms": [form(one, "GET", "invokeaction", **answer(200))],
            },
            "updateThing": {
                "title": "Replace a Thing",
                "uriVariables": variable,
                "input": {"type": "object"},
                "idempotent": True,
                "synchronous": True,
                "forms": [form(one, "PUT", "invokeaction", contentType=TD_JSON, **answer(204))],
            },
            "partiallyUpdateThing": {
                "title": "Change members of a Thing",
                "uriVariables": variable,
                "input": {"type": "object"},
                "synchronous": True,
                "forms": [form(one, "PATCH", "invokeaction", contentType=MERGE_PATCH, **answer(204))],
            },
            "deleteThing": {
                "title": "Delete a Thing",
                "uriVariables": variable,
                "synchronous": True,
                "forms": [form(one, "DELETE", "invokeaction", **answer(204))],
            },
            "searchJSONPath": search("JSONPath"),
            "searchXPath": search("XPath"),
            "searchSPARQL": {
                "title": "Search by SPARQL 1.1",
                "uriVariables": {"query": {"type": "string"}},
                "output": {"type": "object"},
                "safe": True,
                "idempotent": True,
                "synchronous": True,
                "forms": [
                    form("/search/sparql?query={query}", "GET", "invokeaction", **answer(200, SPARQL_RESULTS)),
                    form("/search/sparql", "POST", "invokeaction", contentType=SPARQL, **answer(200, SPARQL_RESULTS)),
                ],
            },
        },
        "events": events,
    }
