"""The rules for security definitions, and for the places that name them."""

import re
from typing import Any

from things.findings import Findings, Path
from things.schema_rules import check_types

_PLACES = ("header", "query", "body", "cookie")
_MEMBERS: dict[str, tuple[str, ...]] = {
    "nosec": (),
    "auto": (),
    "combo": (),
    "basic": ("name",),
    "digest": ("name",),
    "apikey": ("name",),
    "bearer": ("name", "alg", "format", "authorization"),
    "psk": ("identity",),
    "oauth2": ("flow", "authorization", "token", "refresh"),
}
_SINCE_11 = frozenset({"auto", "combo"})
_ADDRESSES = ("proxy", "authorization", "token", "refresh")
_SECRETS = frozenset(
    {"password", "passwd", "passphrase", "secret", "clientsecret", "sharedsecret", "credentials", "privatekey", "key"}
    | {"psk", "presharedkey", "apikey", "accesstoken", "refreshtoken", "bearertoken", "jwt", "pin"}
)


def check_definitions(found: Findings, at: Path, definitions: Any, *, is_11: bool) -> None:
    """Note everything wrong with `securityDefinitions`."""
    if not isinstance(definitions, dict):
        found.add(at, "must be an object of security schemes by name", "shape")
        return
    if not definitions:
        found.add(at, "must define at least one security scheme", "empty")
    for name, scheme in definitions.items():
        if isinstance(scheme, dict):
            _check_scheme(found, (*at, name), name, scheme, definitions, is_11=is_11)
        else:
            found.add((*at, name), "must be a security scheme (an object)", "shape")


def check_names(found: Findings, at: Path, value: Any, definitions: Any) -> None:
    """`security` names at least one scheme, and every name is defined."""
    for name in found.text_or_texts(at, value, at_least_one=True):
        if not isinstance(definitions, dict) or name not in definitions:
            found.add(at, f"{name[:80]!r} is not among the securityDefinitions", "undefined-security")


def check_secrets(found: Findings, at: Path, members: dict[str, Any]) -> None:
    """No member is named for a secret, at any depth."""
    for name, value in members.items():
        if re.sub(r"[^a-z]", "", name.rpartition(":")[2].lower()) in _SECRETS:
            found.add((*at, name), "a Thing Description must not hold secrets", "secret")
        elif isinstance(value, dict):
            check_secrets(found, (*at, name), value)


def _check_scheme(
    found: Findings, at: Path, name: str, scheme: dict[str, Any], definitions: dict[str, Any], *, is_11: bool
) -> None:
    check_types(found, at, scheme)
    found.texts(at, scheme, ("description",))
    found.languages(at, scheme, ("descriptions",))
    check_secrets(found, at, scheme)
    for member in _ADDRESSES:
        if member in scheme and (member == "proxy" or member in _MEMBERS.get(str(scheme.get("scheme")), ())):
            found.address((*at, member), scheme[member])
    kind = scheme.get("scheme")
    if not isinstance(kind, str):
        detail = "every security definition needs a scheme (text)"
        found.add((*at, "scheme"), detail, "type" if "scheme" in scheme else "missing")
        return
    if kind not in _MEMBERS:
        if ":" not in kind[1:]:
            known = ", ".join(_MEMBERS)
            found.add((*at, "scheme"), f"must be one of {known}, or a prefixed term of another vocabulary", "scheme")
        return
    if kind in _SINCE_11 and not is_11:
        found.add((*at, "scheme"), f"{kind} is of TD 1.1; name the 1.1 context to use it", "version")
    found.texts(at, scheme, [member for member in _MEMBERS[kind] if member not in _ADDRESSES])
    _check_members(found, at, name, kind, scheme, definitions, is_11=is_11)


def _check_members(
    found: Findings,
    at: Path,
    name: str,
    kind: str,
    scheme: dict[str, Any],
    definitions: dict[str, Any],
    *,
    is_11: bool,
) -> None:
    match kind:
        case "combo":
            _check_combo(found, at, name, scheme, definitions)
        case "oauth2":
            _check_oauth2(found, at, scheme, is_11=is_11)
        case "auto" if "name" in scheme:
            found.add((*at, "name"), "scheme auto takes no name", "contradiction")
        case "digest" if "qop" in scheme and scheme["qop"] not in ("auth", "auth-int"):
            found.add((*at, "qop"), "must be auth or auth-int", "type")
        case _:
            pass
    if kind in ("basic", "digest", "apikey", "bearer") and "in" in scheme:
        places = (*_PLACES, *(("auto",) if is_11 else ()), *(("uri",) if is_11 and kind == "apikey" else ()))
        if scheme["in"] not in places:
            found.add((*at, "in"), f"must be one of {', '.join(places)}", "type")
        elif scheme["in"] == "uri" and "name" not in scheme:
            found.add((*at, "name"), "a key in the URI needs the name of its variable", "missing")


def _check_combo(found: Findings, at: Path, name: str, scheme: dict[str, Any], definitions: dict[str, Any]) -> None:
    ways = [way for way in ("oneOf", "allOf") if way in scheme]
    if len(ways) != 1:
        found.add(at, "a combo needs exactly one of oneOf and allOf", "combo")
    for way in ways:
        names = scheme[way]
        if not isinstance(names, list):
            found.add((*at, way), "must be a list of names of security definitions", "shape")
            continue
        if len(names) < 2:
            found.add((*at, way), "must name at least two security definitions", "combo")
        for index, other in enumerate(names):
            if not isinstance(other, str):
                found.add((*at, way, index), "must be text", "type")
            elif other not in definitions:
                detail = f"{other[:80]!r} is not among the securityDefinitions"
                found.add((*at, way, index), detail, "undefined-security")
            elif _leads_to(other, name, definitions):
                found.add((*at, way, index), "makes the combo part of itself", "combo")


def _leads_to(start: str, goal: str, definitions: dict[str, Any]) -> bool:
    waiting, seen = [start], set()
    while waiting:
        name = waiting.pop()
        if name == goal:
            return True
        scheme = definitions.get(name)
        if name in seen or not isinstance(scheme, dict) or scheme.get("scheme") != "combo":
            continue
        seen.add(name)
        for names in (scheme.get("oneOf"), scheme.get("allOf")):
            if isinstance(names, list):
                waiting.extend(item for item in names if isinstance(item, str))
    return False


def _check_oauth2(found: Findings, at: Path, scheme: dict[str, Any], *, is_11: bool) -> None:
    if "scopes" in scheme:
        found.text_or_texts((*at, "scopes"), scheme["scopes"])
    flow = scheme.get("flow")
    if not isinstance(flow, str):
        return
    if not is_11 and flow != "code":
        found.add((*at, "flow"), "TD 1.0 knows the flow code only", "version")
        return
    needed = {"code": ("authorization", "token"), "client": ("token",), "device": ("authorization", "token")}
    for member in needed.get(flow, ()):
        if member not in scheme:
            found.add((*at, member), f"the flow {flow} needs {member} (an address)", "missing")
    if flow == "client" and "authorization" in scheme:
        found.add((*at, "authorization"), "the flow client takes no authorization", "contradiction")
