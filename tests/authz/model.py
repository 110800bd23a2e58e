"""What the roles, rules and policies are meant to say, written once more, slowly and from the documentation."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

READS = {"read", "observe", "subscribe", "history"}
OWNED = {"publish_event", "publish_property", "publish_td", "remove_td", "report_status"}
ADMINS_ONLY = {"dtw:authn:admin", "dtw:authz:admin", "dtw:skep:admin"}
SERVICES = {"authn", "authz", "directory", "values", "history", "skep", "rollup", "weather"}


@dataclass
class Case:
    account: str
    type: str
    role: str
    operation: str
    thing: str
    kind: str | None
    name: str | None
    hour: int


def role_allows(c: Case) -> bool:
    owner = c.thing.split(":")[1] if c.thing.startswith("dtw:") else None
    if c.operation == "send":
        return c.role != "none"
    if c.role == "agent":
        if c.operation == "report_status":
            return c.thing == "" or owner == c.account
        if c.operation in OWNED:
            return owner == c.account
        if c.operation in READS:
            return owner == c.account or owner in SERVICES
        return c.operation == "call_rpc" and owner in SERVICES
    rank = ["none", "viewer", "operator", "manager", "service", "admin"].index(c.role)
    if c.operation in READS:
        return rank >= 1
    if c.operation in {"invoke_action", "call_rpc", "cancel"}:
        return rank >= 2
    if c.operation in {"write_property", "manage"}:
        return rank >= 3
    if c.operation in {"publish_td", "remove_td"} and owner is None and c.thing:
        return rank >= 3
    if c.role == "service":
        return owner == c.account or (c.operation == "report_status" and c.thing == "")
    return False


def rule_says(rules: list[dict[str, Any]], c: Case) -> bool | None:
    best: list[tuple[tuple[int, bool, bool, int], str]] = []
    for rule in rules:
        operations = set(rule.get("operations", ()))
        if "invoke_action" in operations:
            operations.add("call_rpc")
        named = [rule.get("accounts"), rule.get("roles"), rule.get("types")]
        for_me = c.account in (named[0] or ()) or c.role in (named[1] or ()) or c.type in (named[2] or ())
        if any(named) and not for_me:
            continue
        if not any(named) and rule["effect"] == "allow" and c.role == "none":
            continue
        if rule["by"] != "root" and c.role == "admin":
            continue
        if (operations and c.operation not in operations) or not fnmatchcase(c.thing, rule["thing"]):
            continue
        if "kind" in rule and rule["kind"] != c.kind:
            continue
        if "name" in rule and (c.name is None or not fnmatchcase(c.name, rule["name"])):
            continue
        name_rank = 0 if "name" not in rule else 1 if "*" in rule["name"] else 2
        whom = 2 if named[0] else 1 if named[1] or named[2] else 0
        best.append(((name_rank, "kind" in rule, "*" not in rule["thing"], whom), rule["effect"]))
    if not best:
        return None
    top = max(rank for rank, _ in best)
    return "deny" not in {effect for rank, effect in best if rank == top}


def policies_say(c: Case) -> bool | None:
    """The two sets of the test: no invoking at night but for otto; nobody of role operator reads lamp's secrets."""
    if c.operation == "invoke_action" and (c.hour >= 22 or c.hour < 6):
        return c.account == "otto"
    if c.role == "operator" and c.operation == "read" and c.name is not None and c.name.startswith("secret"):
        return False
    return None


def allowed(rules: list[dict[str, Any]], c: Case, *, with_policies: bool) -> bool:
    owner = c.thing.split(":")[1] if c.thing.startswith("dtw:") else None
    if c.operation in OWNED:
        if owner is not None and owner != c.account:
            return False
        if c.type == "consumer" and (owner is not None or c.operation not in {"publish_td", "remove_td"}):
            return False
    if c.thing.startswith("$") and c.role != "admin":
        return False
    if c.thing in ADMINS_ONLY and c.operation not in READS and c.role != "admin":
        return False
    repair = c.role == "admin" and c.operation == "manage" and c.thing == "dtw:authz:admin"
    for said in (policies_say(c) if with_policies and not repair else None, rule_says(rules, c)):
        if said is not None:
            return said
    return role_allows(c)
