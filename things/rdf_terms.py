"""The vocabulary of Thing Descriptions as RDF: which member becomes which predicate, where it stands.

After the terms of the W3C ontologies of TD 1.1 (td, json-schema, hypermedia, security) and of WoT Discovery. A `Scope`
is a place in a TD with words of its own: `type` means a data type within a schema and a media type within a form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from things.vocabulary import NAMESPACE, PREFIX

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
XSD = "http://www.w3.org/2001/XMLSchema#"
TD = "https://www.w3.org/2019/wot/td#"
JSON_SCHEMA = "https://www.w3.org/2019/wot/json-schema#"
HYPERMEDIA = "https://www.w3.org/2019/wot/hypermedia#"
SECURITY = "https://www.w3.org/2019/wot/security#"
DISCOVERY = "https://www.w3.org/2021/wot/discovery-ontology#"
DCT = "http://purl.org/dc/terms/"
SCHEMA_ORG = "http://schema.org/"

PREFIXES: Mapping[str, str] = {
    "td": TD,
    "jsonschema": JSON_SCHEMA,
    "hctl": HYPERMEDIA,
    "wotsec": SECURITY,
    "tm": "https://www.w3.org/2019/wot/tm#",
    "htv": "http://www.w3.org/2011/http#",
    "dct": DCT,
    "schema": SCHEMA_ORG,
    "rdf": RDF,
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "xsd": XSD,
    "discovery": DISCOVERY,
    PREFIX: NAMESPACE,
}
"""Those that the standard's own contexts declare, and ours."""


@dataclass(frozen=True, slots=True)
class Term:
    """What a member stands for. How its value is read is said by the members below; by default as plain JSON."""

    iri: str
    scope: "Scope | None" = None
    """Its value is an object, or several, read in this scope."""
    by_name: str | None = None
    """Its value maps names to objects; this predicate gives each its name."""
    datatype: str | None = None
    """Its texts are literals of this type."""
    words: "Mapping[str, str] | None" = None
    """Its texts are words for IRIs; others are compact or whole IRIs, or else stay texts."""
    language: bool = False
    """Its texts are in the language of the description."""
    languages: bool = False
    """Its value maps languages to texts."""


@dataclass(slots=True, eq=False)
class Scope:
    """Members by name; others belong to `vocabulary`, as the standard's `@vocab` says."""

    vocabulary: str
    terms: dict[str, Term] = field(default_factory=dict)
    class_: str | None = None
    """The type of every object read in this scope."""


_OPERATIONS: Mapping[str, str] = {
    word.lower(): TD + word
    for word in (
        *("readProperty", "writeProperty", "observeProperty", "unobserveProperty"),
        *("invokeAction", "queryAction", "cancelAction", "subscribeEvent", "unsubscribeEvent"),
        *("readAllProperties", "writeAllProperties", "readMultipleProperties", "writeMultipleProperties"),
        *("observeAllProperties", "unobserveAllProperties", "queryAllActions"),
        *("subscribeAllEvents", "unsubscribeAllEvents"),
    )
}
_TYPES: Mapping[str, str] = {
    word: f"{JSON_SCHEMA}{word.capitalize()}Schema"
    for word in ("object", "array", "boolean", "string", "number", "integer", "null")
}
_SCHEMES: Mapping[str, str] = {
    "nosec": "NoSecurityScheme",
    "auto": "AutoSecurityScheme",
    "combo": "ComboSecurityScheme",
    "basic": "BasicSecurityScheme",
    "digest": "DigestSecurityScheme",
    "apikey": "APIKeySecurityScheme",
    "bearer": "BearerSecurityScheme",
    "cert": "CertSecurityScheme",
    "psk": "PSKSecurityScheme",
    "public": "PublicSecurityScheme",
    "pop": "PoPSecurityScheme",
    "oauth2": "OAuth2SecurityScheme",
}
_ADDRESS = XSD + "anyURI"
_TIME = XSD + "dateTime"
_SAID: Mapping[str, Term] = {
    "title": Term(TD + "title", language=True),
    "titles": Term(TD + "titleInLanguage", languages=True),
    "description": Term(TD + "description", language=True),
    "descriptions": Term(TD + "descriptionInLanguage", languages=True),
}

SCHEMA = Scope(JSON_SCHEMA)
_FORM = Scope(HYPERMEDIA)
_LINK = Scope(HYPERMEDIA)
_SCHEME = Scope(SECURITY)
_VERSION = Scope(TD)
_REGISTRATION = Scope(DISCOVERY)
_PROPERTY = Scope(JSON_SCHEMA, class_=TD + "PropertyAffordance")
_ACTION = Scope(TD, class_=TD + "ActionAffordance")
_EVENT = Scope(TD, class_=TD + "EventAffordance")
THING = Scope(TD, class_=TD + "Thing")

_RESPONSE = Scope(
    HYPERMEDIA,
    {
        "contentType": Term(HYPERMEDIA + "forContentType"),
        "schema": Term(HYPERMEDIA + "hasAdditionalOutputSchema"),
        "success": Term(HYPERMEDIA + "isSuccess"),
    },
)
SCHEMA.terms |= {
    **_SAID,
    "type": Term(RDF + "type", words=_TYPES),
    "items": Term(JSON_SCHEMA + "items", scope=SCHEMA),
    "properties": Term(JSON_SCHEMA + "properties", scope=SCHEMA, by_name=JSON_SCHEMA + "propertyName"),
    **{word: Term(JSON_SCHEMA + word, scope=SCHEMA) for word in ("oneOf", "allOf", "anyOf")},
    "unit": Term(SCHEMA_ORG + "unitCode", words={}),
}
_FORM.terms |= {
    "href": Term(HYPERMEDIA + "hasTarget", datatype=_ADDRESS),
    "op": Term(HYPERMEDIA + "hasOperationType", words=_OPERATIONS),
    "contentType": Term(HYPERMEDIA + "forContentType"),
    "contentCoding": Term(HYPERMEDIA + "forContentCoding"),
    "subprotocol": Term(HYPERMEDIA + "forSubProtocol"),
    "security": Term(TD + "hasSecurityConfiguration"),
    "scopes": Term(SECURITY + "scopes"),
    "response": Term(HYPERMEDIA + "returns", scope=_RESPONSE),
    "additionalResponses": Term(HYPERMEDIA + "additionalReturns", scope=_RESPONSE),
}
_LINK.terms |= {
    "href": Term(HYPERMEDIA + "hasTarget", datatype=_ADDRESS),
    "rel": Term(HYPERMEDIA + "hasRelationType"),
    "type": Term(HYPERMEDIA + "hintsAtMediaType"),
    "anchor": Term(HYPERMEDIA + "hasAnchor", datatype=_ADDRESS),
    "sizes": Term(HYPERMEDIA + "hasSizes"),
    "hreflang": Term(HYPERMEDIA + "hasHreflang"),
}
_SCHEME.terms |= {
    "scheme": Term(RDF + "type", words={word: SECURITY + name for word, name in _SCHEMES.items()}),
    "description": _SAID["description"],
    "descriptions": _SAID["descriptions"],
    **{word: Term(SECURITY + word, datatype=_ADDRESS) for word in ("authorization", "token", "refresh", "proxy")},
}
_REGISTRATION.terms |= {
    "created": Term(DISCOVERY + "dateCreated", datatype=_TIME),
    "modified": Term(DISCOVERY + "dateModified", datatype=_TIME),
    "expires": Term(DISCOVERY + "expires", datatype=_TIME),
    "retrieved": Term(DISCOVERY + "retrieved", datatype=_TIME),
}
_AFFORDANCE: Mapping[str, Term] = {
    **_SAID,
    "forms": Term(TD + "hasForm", scope=_FORM),
    "uriVariables": Term(TD + "hasUriTemplateSchema", scope=SCHEMA, by_name=TD + "name"),
}
_PROPERTY.terms |= {**SCHEMA.terms, **_AFFORDANCE, "observable": Term(TD + "isObservable")}
_ACTION.terms |= {
    **_AFFORDANCE,
    "input": Term(TD + "hasInputSchema", scope=SCHEMA),
    "output": Term(TD + "hasOutputSchema", scope=SCHEMA),
    "safe": Term(TD + "isSafe"),
    "idempotent": Term(TD + "isIdempotent"),
    "synchronous": Term(TD + "isSynchronous"),
}
_EVENT.terms |= {
    **_AFFORDANCE,
    "subscription": Term(TD + "hasSubscriptionSchema", scope=SCHEMA),
    "data": Term(TD + "hasNotificationSchema", scope=SCHEMA),
    "dataResponse": Term(TD + "hasNotificationResponseSchema", scope=SCHEMA),
    "cancellation": Term(TD + "hasCancellationSchema", scope=SCHEMA),
}
THING.terms |= {
    **_SAID,
    "properties": Term(TD + "hasPropertyAffordance", scope=_PROPERTY, by_name=TD + "name"),
    "actions": Term(TD + "hasActionAffordance", scope=_ACTION, by_name=TD + "name"),
    "events": Term(TD + "hasEventAffordance", scope=_EVENT, by_name=TD + "name"),
    "forms": Term(TD + "hasForm", scope=_FORM),
    "links": Term(TD + "hasLink", scope=_LINK),
    "security": Term(TD + "hasSecurityConfiguration"),
    "securityDefinitions": Term(TD + "definesSecurityScheme", scope=_SCHEME, by_name=TD + "hasInstanceConfiguration"),
    "schemaDefinitions": Term(TD + "schemaDefinitions", scope=SCHEMA, by_name=TD + "name"),
    "uriVariables": Term(TD + "hasUriTemplateSchema", scope=SCHEMA, by_name=TD + "name"),
    "version": Term(TD + "versionInfo", scope=_VERSION),
    "base": Term(TD + "baseURI", datatype=_ADDRESS),
    "support": Term(TD + "supportContact", datatype=_ADDRESS),
    "profile": Term(TD + "followsProfile", datatype=_ADDRESS),
    "created": Term(DCT + "created", datatype=_TIME),
    "modified": Term(DCT + "modified", datatype=_TIME),
    "license": Term(DCT + "license"),
    "registration": Term(DISCOVERY + "hasRegistrationInformation", scope=_REGISTRATION),
}
