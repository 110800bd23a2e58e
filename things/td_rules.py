"""What makes a document a Thing Description: every rule, and every breach reported at once with its JSON pointer.

The rules are those of TD 1.1, or of TD 1.0 where only its context is named, and what JSON Schema cannot say: names of
security definitions, operations that fit their affordance, relative addresses without a base, repeated links, terms of
Thing Models, secrets. Our own `skep:` terms are checked too; terms of other vocabularies are nobody's business here.
"""

import re
from typing import Any

from things.durations import td_seconds
from things.errors import BadAddress, Invalid, Problem
from things.findings import Findings, Path, is_relative, is_uri
from things.names import checked_name
from things.schema_rules import check_schema, check_types
from things.security_rules import check_definitions, check_names

TD_10 = "https://www.w3.org/2019/wot/td/v1"
TD_11 = "https://www.w3.org/2022/wot/td/v1.1"
TD_2 = frozenset({"http://www.w3.org/ns/td", "https://www.w3.org/ns/td", "https://www.w3.org/ns/wot-next/td"})
"""Contexts of the 2.0 drafts, which are met in the wild."""
SKEP = "urn:skep:v1#"
MAX_ID_CHARS = 512

_OPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # affordance: operations of TD 1.0, and those that 1.1 adds
    "properties": (("readproperty", "writeproperty", "observeproperty", "unobserveproperty"), ()),
    "actions": (("invokeaction",), ("queryaction", "cancelaction")),
    "events": (("subscribeevent", "unsubscribeevent"), ()),
    "": (
        ("readallproperties", "writeallproperties", "readmultipleproperties", "writemultipleproperties"),
        (
            "observeallproperties",
            "unobserveallproperties",
            "queryallactions",
            "subscribeallevents",
            "unsubscribeallevents",
        ),
    ),
}
_SCHEMAS = {"properties": (), "actions": ("input", "output"), "events": ("subscription", "data", "cancellation")}
_FLAGS = {"properties": ("observable",), "actions": ("safe", "idempotent"), "events": ()}
_DURATIONS = ("skep:expires", "skep:deadline", "skep:interval")
_SUBPROTOCOLS_10 = ("longpoll", "websub", "sse")
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
_SINGLE_RELATIONS = frozenset({"type"})
_LINK_MEMBERS = ("href", "anchor", "type", "hreflang", "sizes", "instanceName")
"""By which two links of one relation differ; a model may use a submodel several times, each under a name of its own."""
_LANGUAGE = re.compile(
    r"(?:[A-Za-z]{2,3}(?:-[A-Za-z]{3}){0,3}|[A-Za-z]{4,8})(?:-[A-Za-z]{4})?(?:-(?:[A-Za-z]{2}|[0-9]{3}))?"
    r"(?:-(?:[A-Za-z0-9]{5,8}|[0-9][A-Za-z0-9]{3}))*(?:-[A-WY-Za-wy-z0-9](?:-[A-Za-z0-9]{2,8})+)*"
    r"(?:-x(?:-[A-Za-z0-9]{1,8})+)?|[xX](?:-[A-Za-z0-9]{1,8})+|[iI]-[A-Za-z]{2,8}|"
    r"en-GB-oed|sgn-(?:BE-FR|BE-NL|CH-DE)|art-lojban|cel-gaulish|no-(?:bok|nyn)|zh-min-nan",
    re.ASCII,
)
_SIZES = re.compile(r"[0-9]*x[0-9]+", re.ASCII)


def problems_of(document: Any, *, agent: bool = False) -> list[Problem]:
    """Everything wrong with `document` as a Thing Description.

    `agent`: forms, security and securityDefinitions may be missing, as `ThingDescription.parse` explains.
    """
    found = Findings()
    if isinstance(document, dict):
        _Rules(found, document, agent=agent).check()
    else:
        found.add((), "a Thing Description is a JSON object", "type")
    return found.problems


def is_td_11(context: Any) -> bool:
    """Whether `@context` names TD 1.1."""
    return context == TD_11 or (isinstance(context, list) and TD_11 in context)


class _Rules:
    """The rules applied to one document."""

    def __init__(self, found: Findings, document: dict[str, Any], *, agent: bool) -> None:
        self.found = found
        self.document = document
        self.agent = agent
        self.is_11 = is_td_11(document.get("@context"))
        self.definitions = document.get("securityDefinitions", {})
        self.uri_keys = _uri_keys(self.definitions)

    def check(self) -> None:
        self._check_context()
        self._check_head()
        self._check_security()
        for plural in ("properties", "actions", "events"):
            if plural in self.document:
                self._check_affordances(plural, self.document[plural])
        if "forms" in self.document:
            self._check_forms(("forms",), self.document["forms"], "")
        if "links" in self.document:
            self._check_links(self.document["links"])
        if self.is_11:
            self._check_new_members()

    def _check_context(self) -> None:
        found, context = self.found, self.document.get("@context")
        at: Path = ("@context",)
        if "@context" not in self.document:
            found.add(at, f"a Thing Description names its @context: {TD_11}", "missing")
            return
        items = context if isinstance(context, list) else [context]
        first = items[0] if items else None
        if first not in (TD_10, TD_11):
            if any(isinstance(item, str) and item in TD_2 for item in items):
                found.add(at, "Thing Descriptions 2.0 are drafts and not supported; use 1.1 or 1.0", "version")
            else:
                found.add(at, f"must be, or begin with, {TD_11} or {TD_10}", "context")
        if first == TD_11 and TD_10 in items:
            found.add(at, "where both are named, the context of TD 1.0 comes before that of 1.1", "context")
        for index, item in enumerate(items[1:], start=1):
            if isinstance(item, dict):
                self._check_prefixes((*at, index), item)
            elif not isinstance(item, str):
                found.add((*at, index), "must be a URI or an object of terms", "type")

    def _check_prefixes(self, at: Path, terms: dict[str, Any]) -> None:
        if self.is_11:
            self.found.texts(at, terms, terms)
        if terms.get("skep", SKEP) != SKEP:
            self.found.add((*at, "skep"), f"the prefix skep stands for {SKEP}", "context")

    def _check_head(self) -> None:
        found, document = self.found, self.document
        if "title" not in document:
            found.add(("title",), "a Thing Description needs a title", "missing")
        found.texts((), document, ("title", "description"))
        found.languages((), document, ("titles", "descriptions"))
        check_types(found, (), document)
        if "id" in document:
            id_ = document["id"]
            if not isinstance(id_, str) or not is_uri(id_):
                found.add(("id",), "must be a URI such as urn:uuid:…", "uri")
            elif found.address(("id",), id_) and len(id_) > MAX_ID_CHARS:
                found.add(("id",), f"is longer than {MAX_ID_CHARS} characters", "too-long")
        if "base" in document and found.address(("base",), document["base"]) and is_relative(document["base"]):
            found.add(("base",), "must be an absolute URI", "uri")
        if "support" in document:
            found.address(("support",), document["support"])
        for name in ("created", "modified"):
            if name in document:
                found.date_time((name,), document[name])
        if "version" in document:
            version = document["version"]
            if not isinstance(version, dict) or not isinstance(version.get("instance"), str):
                found.add(("version",), "must be an object with the text member instance", "shape")
        if "registration" in document:
            self._check_registration(document["registration"])
        for name in document:
            if name.startswith("tm:"):
                found.add((name,), "is a Thing Model term; a Thing Description has none", "thing-model")

    def _check_registration(self, registration: Any) -> None:
        at: Path = ("registration",)
        if not isinstance(registration, dict):
            self.found.add(at, "must be an object", "shape")
            return
        for name in ("created", "modified", "expires", "retrieved"):
            if name in registration:
                self.found.date_time((*at, name), registration[name])
        ttl = registration.get("ttl", 0)
        if isinstance(ttl, bool) or not isinstance(ttl, int | float) or ttl < 0:
            self.found.add((*at, "ttl"), "must be a number of seconds that is not negative", "type")

    def _check_security(self) -> None:
        for name in ("securityDefinitions", "security"):
            if name not in self.document and not self.agent:
                self.found.add((name,), f"a Thing Description needs {name}", "missing")
        if "securityDefinitions" in self.document:
            check_definitions(self.found, ("securityDefinitions",), self.definitions, is_11=self.is_11)
        if "security" in self.document:
            check_names(self.found, ("security",), self.document["security"], self.definitions)

    def _check_affordances(self, plural: str, affordances: Any) -> None:
        if not isinstance(affordances, dict):
            self.found.add((plural,), f"must be an object of {plural} by name", "shape")
            return
        for name, affordance in affordances.items():
            at: Path = (plural, name)
            try:
                checked_name(name)
            except BadAddress as error:
                self.found.add(at, error.detail, error.code)
            if isinstance(affordance, dict):
                self._check_affordance(at, plural, affordance)
            else:
                self.found.add(at, "must be an object", "shape")

    def _check_affordance(self, at: Path, plural: str, affordance: dict[str, Any]) -> None:
        found = self.found
        if plural == "properties":
            check_schema(found, at, affordance)
        else:
            check_types(found, at, affordance)
            found.texts(at, affordance, ("title", "description"))
            found.languages(at, affordance, ("titles", "descriptions"))
            for name in affordance:
                if name.startswith("tm:"):
                    found.add((*at, name), "is a Thing Model term; a Thing Description has none", "thing-model")
        found.flags(at, affordance, _FLAGS[plural])
        if self.is_11 and plural == "actions":
            found.flags(at, affordance, ("synchronous",))
        for name in (*_SCHEMAS[plural], *(("dataResponse",) if self.is_11 and plural == "events" else ())):
            if name in affordance:
                check_schema(found, (*at, name), affordance[name])
        if "uriVariables" in affordance:
            self._check_variables((*at, "uriVariables"), affordance["uriVariables"])
        for name in _DURATIONS:
            if name in affordance:
                self._check_duration((*at, name), affordance[name])
        if "forms" in affordance:
            self._check_forms((*at, "forms"), affordance["forms"], plural)
        elif not self.agent:
            found.add((*at, "forms"), "every property, action and event needs forms", "missing")

    def _check_duration(self, at: Path, value: Any) -> None:
        try:
            td_seconds(value)
        except Invalid as error:
            self.found.add(at, error.detail, "duration")

    def _check_variables(self, at: Path, variables: Any) -> None:
        if not isinstance(variables, dict):
            self.found.add(at, "must be an object of data schemas by variable", "shape")
            return
        for name, schema in variables.items():
            check_schema(self.found, (*at, name), schema)
            if isinstance(schema, dict) and schema.get("type") in ("object", "array"):
                self.found.add((*at, name), "a variable of a URI is neither object nor array", "type")
            if name in self.uri_keys:
                self.found.add((*at, name), "is the variable of a security definition already", "repeated")

    def _check_forms(self, at: Path, forms: Any, plural: str) -> None:
        if not isinstance(forms, list):
            self.found.add(at, "must be a list of forms", "shape")
            return
        if not forms and not self.agent:
            self.found.add(at, "must hold at least one form", "empty")
        for index, form in enumerate(forms):
            if isinstance(form, dict):
                self._check_form((*at, index), form, plural)
            else:
                self.found.add((*at, index), "must be a form (an object)", "shape")

    def _check_form(self, at: Path, form: dict[str, Any], plural: str) -> None:
        found = self.found
        if "href" not in form:
            found.add((*at, "href"), "a form needs an href", "missing")
        elif found.address((*at, "href"), form["href"]) and is_relative(form["href"]) and "base" not in self.document:
            found.add((*at, "href"), "is relative, and the Thing Description has no base", "no-base")
        found.texts(at, form, ("contentType", "contentCoding", "subprotocol"))
        if not self.is_11 and isinstance(form.get("subprotocol"), str) and form["subprotocol"] not in _SUBPROTOCOLS_10:
            found.add((*at, "subprotocol"), f"TD 1.0 knows {', '.join(_SUBPROTOCOLS_10)} only", "version")
        if "security" in form:
            check_names(found, (*at, "security"), form["security"], self.definitions)
        if "scopes" in form:
            found.text_or_texts((*at, "scopes"), form["scopes"])
        if "response" in form:
            self._check_response((*at, "response"), form["response"])
        if self.is_11 and "additionalResponses" in form:
            self._check_additional((*at, "additionalResponses"), form["additionalResponses"])
        self._check_operations(at, form, plural)
        self._check_headers(at, form)

    def _check_operations(self, at: Path, form: dict[str, Any], plural: str) -> None:
        if "op" not in form:
            if plural == "" and self.is_11:
                self.found.add((*at, "op"), "a form of the Thing as a whole names its op", "missing")
            return
        old, new = _OPS[plural]
        for op in self.found.text_or_texts((*at, "op"), form["op"], at_least_one=self.is_11):
            if op in new and not self.is_11:
                self.found.add((*at, "op"), f"{op} is of TD 1.1; name the 1.1 context to use it", "version")
            elif op not in old and op not in new:
                whose = f"a form of {plural}" if plural else "a form of the Thing as a whole"
                self.found.add((*at, "op"), f"{op[:40]!r} does not fit {whose}: use {', '.join(old + new)}", "op")

    def _check_response(self, at: Path, response: Any) -> None:
        if not isinstance(response, dict):
            self.found.add(at, "must be an object", "shape")
            return
        if self.is_11 and "contentType" not in response:
            self.found.add((*at, "contentType"), "a response needs a contentType", "missing")
        self.found.texts(at, response, ("contentType",))

    def _check_additional(self, at: Path, responses: Any) -> None:
        if not isinstance(responses, list):
            self.found.add(at, "must be a list of responses", "shape")
            return
        schemas = self.document.get("schemaDefinitions")
        for index, response in enumerate(responses):
            if not isinstance(response, dict):
                self.found.add((*at, index), "must be an object", "shape")
                continue
            self.found.texts((*at, index), response, ("contentType", "schema"))
            self.found.flags((*at, index), response, ("success",))
            name = response.get("schema")
            if isinstance(name, str) and (not isinstance(schemas, dict) or name not in schemas):
                detail = f"{name[:80]!r} is not among the schemaDefinitions"
                self.found.add((*at, index, "schema"), detail, "undefined-schema")

    def _check_headers(self, at: Path, form: dict[str, Any]) -> None:
        headers = form.get("htv:headers")
        for index, header in enumerate(headers if isinstance(headers, list) else ()):
            name = header.get("htv:fieldName", header.get("fieldName")) if isinstance(header, dict) else None
            if isinstance(name, str) and name.lower() in _SECRET_HEADERS:
                detail = "a header with credentials; a Thing Description must not hold secrets"
                self.found.add((*at, "htv:headers", index), detail, "secret")

    def _check_links(self, links: Any) -> None:
        if not isinstance(links, list):
            self.found.add(("links",), "must be a list of links", "shape")
            return
        seen: set[tuple[object, ...]] = set()
        for index, link in enumerate(links):
            at: Path = ("links", index)
            if not isinstance(link, dict):
                self.found.add(at, "must be a link (an object)", "shape")
                continue
            self._check_link(at, link)
            relation = link.get("rel")
            if not isinstance(relation, str):
                continue
            key: tuple[object, ...] = (relation,)
            if relation not in _SINGLE_RELATIONS:
                key = (relation, *(repr(link.get(name)) for name in _LINK_MEMBERS))
            if key in seen:
                self.found.add((*at, "rel"), f"the relation {relation[:40]!r} stands twice", "repeated")
            seen.add(key)

    def _check_link(self, at: Path, link: dict[str, Any]) -> None:
        found = self.found
        if "href" not in link:
            found.add((*at, "href"), "a link needs an href", "missing")
        else:
            found.address((*at, "href"), link["href"])
        if "anchor" in link:
            found.address((*at, "anchor"), link["anchor"])
        found.texts(at, link, ("type", "rel"))
        relation = link.get("rel")
        if isinstance(relation, str) and relation.startswith("tm:"):
            found.add((*at, "rel"), f"{relation[:40]} is a relation of Thing Models", "thing-model")
        if not self.is_11:
            return
        if "hreflang" in link:
            for tag in found.text_or_texts((*at, "hreflang"), link["hreflang"]):
                if not _LANGUAGE.fullmatch(tag):
                    found.add((*at, "hreflang"), f"{tag[:40]!r} is no language tag", "language")
        if "sizes" in link:
            if relation != "icon":
                found.add((*at, "sizes"), "only a link to an icon has sizes", "contradiction")
            elif not isinstance(link["sizes"], str) or not _SIZES.search(link["sizes"]):
                found.add((*at, "sizes"), "must be text such as 64x64", "type")

    def _check_new_members(self) -> None:
        """Members of the Thing that TD 1.1 added."""
        found, document = self.found, self.document
        if "profile" in document:
            found.text_or_texts(("profile",), document["profile"], at_least_one=True)
        if "uriVariables" in document:
            self._check_variables(("uriVariables",), document["uriVariables"])
        if "schemaDefinitions" in document:
            schemas = document["schemaDefinitions"]
            if not isinstance(schemas, dict) or not schemas:
                found.add(("schemaDefinitions",), "must be an object of data schemas by name, at least one", "shape")
            else:
                for name, schema in schemas.items():
                    check_schema(found, ("schemaDefinitions", name), schema)


def _uri_keys(definitions: Any) -> frozenset[str]:
    """Names of URI variables that security definitions use for themselves."""
    schemes = definitions.values() if isinstance(definitions, dict) else ()
    names = (scheme.get("name") for scheme in schemes if isinstance(scheme, dict) and scheme.get("in") == "uri")
    return frozenset(name for name in names if isinstance(name, str))
