"""Whom the names in all that is kept of rights mean, written down beside it."""

from collections.abc import Mapping
from dataclasses import replace

from authz.naming import Identify, Meant, bound_to, digest, senders
from authz.policy.sets import SetDocument, plain
from authz.rights import Rights


def bound(rights: Rights, documents: Mapping[str, SetDocument], identify: Identify) -> Rights:
    """`rights` with these policy sets, and whom all names mean: those that nobody had when they were set mean whoever
    has them by now."""
    rules = {}
    for rule_id, rule in rights.rules.items():
        ids = bound_to(rule.accounts, identify, rule.account_ids)
        rules[rule_id] = rule if ids == rule.account_ids else replace(rule, account_ids=ids)
    return replace(rights, rules=rules, meant=all_meant(documents, rights, identify))


def all_meant(documents: Mapping[str, SetDocument], rights: Rights, identify: Identify) -> dict[str, Meant]:
    return {set_id: meant_in(document, rights, identify) for set_id, document in documents.items()}


def meant_in(document: SetDocument, rights: Rights, identify: Identify) -> Meant:
    """Whom the names in one set mean; a set that was changed is bound anew."""
    written = plain(document)
    known, found = rights.meant.get(document.id), digest(written)
    standing = known.accounts if known is not None and known.digest == found else None
    return Meant(digest=found, accounts=bound_to(senders(written), identify, standing))
