"""Custom roles, rules and the names of active policy sets: what is kept of rights, in `{home}/rights.json`.

The file is written whole and never repaired by guessing: what cannot be read raises StorageDamaged, and the authorizer
then denies everything but the repair.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from authz.documents import Document, RoleDocument, StoredRule, role_document, rule_document
from authz.naming import Meant
from authz.roles import RoleRights
from authz.rules import Rule
from things.errors import Invalid, StorageDamaged
from things.jsontext import decode_unique, encode
from things.parsing import parsed
from things.whole_files import write_whole

MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """All that is kept, at one version."""

    version: int = 0
    roles: Mapping[str, RoleRights] = field(default_factory=dict)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    policies: frozenset[str] = frozenset()
    """Sets that were active: one that is missing at the next start was lost, not removed."""
    meant: Mapping[str, Meant] = field(default_factory=dict)
    """Whom the names in these mean."""


class _Meant(Document):
    digest: str
    accounts: dict[str, str]


class _File(Document):
    v: Literal[1]
    version: Annotated[int, Field(ge=0)]
    roles: list[RoleDocument]
    rules: list[StoredRule]
    policies: list[str]
    meant: dict[str, _Meant] = Field(default_factory=dict)


class RightsFile:
    """`{home}/rights.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Rights:
        """What is kept; nothing yet at a first start. Raises StorageDamaged."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return Rights()
        try:
            kept = parsed(_File, decode_unique(content, max_bytes=MAX_BYTES))
        except Invalid as error:
            raise StorageDamaged(
                f"{self.path} cannot be read ({error.detail}); restore it, or move it away, and reload"
            ) from error
        return Rights(
            version=kept.version,
            roles={role.name: role.rights() for role in kept.roles},
            rules={rule.id: rule.kept() for rule in kept.rules},
            policies=frozenset(kept.policies),
            meant={set_id: Meant(digest=one.digest, accounts=one.accounts) for set_id, one in kept.meant.items()},
        )

    def save(self, rights: Rights) -> None:
        """Replace what is kept; synced when it returns."""
        document = {
            "v": 1,
            "version": rights.version,
            "roles": [role_document(role) for role in rights.roles.values()],
            "rules": [rule_document(rule) for rule in rights.rules.values()],
            "policies": sorted(rights.policies),
            "meant": {
                set_id: {"digest": one.digest, "accounts": dict(one.accounts)}
                for set_id, one in sorted(rights.meant.items())
            },
        }
        write_whole(self.path, encode(document) + b"\n")
