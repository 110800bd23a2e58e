"""The one decision function: may this principal do this operation there?

    limits  →  policies  →  rules  →  role  →  deny

Limits cannot be lifted. A policy that applies decides before rules, a rule before the role, and what nothing allows is
denied. Decisions that depend on nothing but who, what and where are remembered until rights change; the others are
evaluated with the context that is passed in. Rights that cannot be read deny everything but their repair.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path

from anyio import CancelScope, CapacityLimiter, Lock, to_thread

from authz.documents import RoleDocument, RuleDocument
from authz.limits import is_guarded
from authz.meanings import all_meant, bound, meant_in
from authz.naming import Identify, bound_to
from authz.policy.facts import Facts, Moment
from authz.policy.folder import PolicyFolder
from authz.policy.judging import Open, decision_of, judged
from authz.policy.sets import NeedsContext, PolicySets, SetDocument
from authz.prospects import Prospect, could_allow
from authz.rights import Rights, RightsFile
from authz.roles import BUILT_IN, RoleRights, owner_of
from authz.rules import MAX_RULES, MAX_RULES_OF_OWNER, Rule
from authz.stages import Stages, stages_of
from things.addresses import TWIN_PREFIX, Address, Kind
from things.bounded import Bounded
from things.decisions import Context, Decision
from things.errors import Conflict, Forbidden, Invalid, NotFound, QueueFull, SkepError, StorageDamaged
from things.identity import AccountType, Principal, Role
from things.messages import Operation

MAX_CACHED = 65_536
MAX_ROLES = 100

_Asked = tuple[str, str | None, str, AccountType, Operation, Address]

_NO_RIGHTS = RoleRights(name="unknown", grants=())

log = logging.getLogger(__name__)


class LocalAuthorizer:
    """The rights of this installation. Deciding is synchronous; changes are on disk before they count."""

    def __init__(
        self,
        rights: RightsFile,
        folder: PolicyFolder,
        *,
        account_type: Callable[[str], AccountType | None],
        clock: Callable[[], int],
        thing_types: Callable[[str], tuple[str, ...] | None] = lambda _thing_id: None,
        identity_of: Identify = lambda _account: None,
    ) -> None:
        self._file = rights
        self._folder = folder
        self._account_type = account_type
        self._clock = clock
        self._thing_types = thing_types
        self.identity_of = identity_of
        self._lock = Lock()
        self._limiter = CapacityLimiter(1)
        self._listeners: list[Callable[[], None]] = []
        self._cache = Bounded[_Asked, Decision | Open](MAX_CACHED)
        self._divided = Bounded[str, bool](MAX_CACHED)
        self._rights = Rights()
        self._sets = PolicySets({})
        self._is_damaged = False
        self.version = 0
        self.problem: str | None = None
        """Why everything is denied, if it is: rights or a policy file cannot be read."""
        self._load()

    @classmethod
    def open(
        cls,
        home: Path,
        *,
        account_type: Callable[[str], AccountType | None],
        clock: Callable[[], int],
        thing_types: Callable[[str], tuple[str, ...] | None] = lambda _thing_id: None,
        identity_of: Identify = lambda _account: None,
        policies: Path | None = None,
    ) -> "LocalAuthorizer":
        """The rights kept below `home`. `account_type` tells what an account is (agents may call services only),
        `identity_of` who has a name now, `thing_types` a Thing's `@type` where a decision comes without context (None:
        not known)."""
        return cls(
            RightsFile(home / "rights.json"),
            PolicyFolder(policies or home / "policies"),
            account_type=account_type,
            clock=clock,
            thing_types=thing_types,
            identity_of=identity_of,
        )

    # ------------------------------------------------------------ deciding

    def decide(
        self, principal: Principal, operation: Operation, address: Address, context: Context | None = None
    ) -> Decision:
        """Whether `principal` may do `operation` at `address`. Without a context, time is read from the clock, and
        conditions that need a message make the cautious answer: what might block does, what might allow does not."""
        key = (principal.account, principal.account_id, principal.role, principal.type, operation, address)
        found = self._cache.get(key)
        if found is None:
            found = self._prepared(principal, operation, address)
            # Whether an account is a service may still change while it does not exist.
            owner = owner_of(address.thing_id)
            if owner is None or self._account_type(owner) is not None:
                self._cache[key] = found
        if found.__class__ is Decision:
            return found
        assert isinstance(found, Open)
        return found.decide(context or self._moment(address))

    def could_allow(
        self,
        principal: Principal,
        operation: Operation,
        *,
        agent: str | None,
        thing: str | None,
        kind: Kind,
        name: str | None,
    ) -> bool:
        """Whether any decision could allow it on a twin; None stands for any agent, Thing or name. See `prospects`."""
        address = Address(f"{TWIN_PREFIX}{agent}:{thing}", kind, name)
        return self.problem is None and could_allow(
            Prospect(principal=principal, operation=operation, address=address, context=None, agent=agent, thing=thing),
            sets=self._sets,
            rules=self._rights.rules.values(),
            role=self._role_rights(principal),
            account_type=self._account_type,
        )

    def steps(
        self, principal: Principal, operation: Operation, address: Address, context: Context | None = None
    ) -> list[tuple[str, Decision | None]]:
        """Each stage in order with what it says, None where it says nothing; the first that speaks decides."""
        facts = Facts(principal=principal, operation=operation, address=address, context=None)
        stages = self._stages(facts)
        policy = None if stages.is_repair else judged(self._sets, facts, context or self._moment(address))
        return [("limit", stages.limit), ("policy", policy), ("rule", stages.rule), ("role", stages.role)]

    @property
    def is_conditional(self) -> bool:
        """Whether any decision may hang on a context: only policies look at one."""
        return bool(self._sets.documents)

    def is_uniform(self, principal: Principal, thing_id: str) -> bool:
        """Whether a principal's rights are the same for all affordances of a Thing, and then those to the Thing as a
        whole: no policy is active, and neither its role nor any rule about the Thing looks at kinds or names."""
        if self._sets.documents:
            return False
        if any(grant.names for grant in self._role_rights(principal).grants):
            return False
        return not self._is_divided(thing_id)

    def has_role(self, name: str) -> bool:
        """Whether a role exists, built-in or custom."""
        return name in BUILT_IN or name in self._rights.roles

    def types_of(self, thing_id: str) -> tuple[str, ...]:
        """A Thing's `@type` as far as it is known here."""
        return self._thing_types(thing_id) or ()

    def on_changed(self, callback: Callable[[], None]) -> None:
        """Call `callback`, in the event loop, after rights changed: what sessions may see is to be decided anew."""
        self._listeners.append(callback)

    def forget(self) -> None:
        """Drop remembered decisions: accounts changed."""
        self._cache.clear()
        self._divided.clear()
        self.version += 1

    # ------------------------------------------------------------ what is set

    @property
    def roles(self) -> list[RoleRights]:
        return [*BUILT_IN.values(), *self._rights.roles.values()]

    @property
    def rules(self) -> list[Rule]:
        return list(self._rights.rules.values())

    @property
    def policy_sets(self) -> PolicySets:
        return self._sets

    @property
    def folder(self) -> PolicyFolder:
        return self._folder

    async def put_role(self, document: RoleDocument) -> None:
        """Create or replace a custom role."""
        async with self._changing():
            if document.name not in self._rights.roles and len(self._rights.roles) >= MAX_ROLES:
                raise QueueFull("this installation", MAX_ROLES, "roles")
            await self._save(replace(self._rights, roles={**self._rights.roles, document.name: document.rights()}))

    async def remove_role(self, name: str) -> None:
        """Remove a custom role; accounts that still have it may do nothing."""
        async with self._changing():
            if name not in self._rights.roles:
                raise NotFound(f"no custom role {name[:64]!r}")
            roles = {key: role for key, role in self._rights.roles.items() if key != name}
            await self._save(replace(self._rights, roles=roles))

    async def put_rule(self, document: RuleDocument, principal: Principal) -> Rule:
        """Create or replace a rule in somebody's name. Raises Forbidden if the Things are not theirs to rule over."""
        rule = document.rule(principal, self._clock(), bound_to(document.accounts, self.identity_of))
        for role in rule.roles:
            if not self.has_role(role):
                raise Invalid(f"there is no role {role[:64]!r}")
        if is_guarded(str(rule.thing)):
            raise Invalid("accounts, rights and the runtime itself are not subject to rules")
        async with self._changing():
            standing = self._rights.rules.get(rule.rule_id)
            if not rule.by_admin:
                self._check_owner(rule, standing, principal)
            if standing is None and len(self._rights.rules) >= MAX_RULES:
                raise QueueFull("this installation", MAX_RULES, "rules")
            await self._save(replace(self._rights, rules={**self._rights.rules, rule.rule_id: rule}))
        return rule

    async def remove_rule(self, rule_id: str, principal: Principal) -> None:
        async with self._changing():
            rule = self._rights.rules.get(rule_id)
            if rule is None or (principal.role != Role.ADMIN and rule.set_by != principal.account):
                raise NotFound(f"no rule {rule_id[:64]!r}")
            rules = {key: kept for key, kept in self._rights.rules.items() if key != rule_id}
            await self._save(replace(self._rights, rules=rules))

    async def put_policy_set(self, document: SetDocument) -> SetDocument:
        """Activate a policy set, new or in place of its former version. Raises Invalid; Conflict when its `version`
        is neither the next one nor left at 1."""
        async with self._changing():
            documents = self._documents()
            standing = documents.get(document.id)
            following = 1 if standing is None else standing.version + 1
            if document.version not in {1, following}:
                raise Conflict(f"policy set {document.id!r} is at version {following - 1}, not {document.version - 1}")
            document = document.model_copy(update={"version": following})
            PolicySets({**documents, document.id: document})  # raises Invalid before anything is written
            meant = {**self._rights.meant, document.id: meant_in(document, self._rights, self.identity_of)}
            rights = replace(self._rights, policies=self._rights.policies | {document.id}, meant=meant)
            await self._save(rights, lambda: self._folder.write(document))
        return document

    async def remove_policy_set(self, set_id: str) -> None:
        """Deactivate a set and take its file away. Also lets go of a set whose file was lost or is broken."""
        async with self._changing():
            documents = self._documents()
            if set_id not in documents and set_id not in self._rights.policies and self.problem is None:
                raise NotFound(f"no policy set {set_id[:64]!r}")
            PolicySets({key: kept for key, kept in documents.items() if key != set_id})
            meant = {key: kept for key, kept in self._rights.meant.items() if key != set_id}
            rights = replace(self._rights, policies=self._rights.policies - {set_id}, meant=meant)
            await self._save(rights, lambda: self._folder.remove(set_id), files_first=False)

    def tried(self, documents: Mapping[str, SetDocument]) -> "LocalAuthorizer":
        """An authorizer like this one, with these policy sets instead; it stores nothing. Raises Invalid."""
        trial = copy(self)
        trial._sets = PolicySets(documents, all_meant(documents, self._rights, self.identity_of))
        trial._cache = Bounded(MAX_CACHED)
        trial.problem = None
        return trial

    async def account_added(self, name: str) -> None:
        """An account was made: where its name stands and nobody had it before, it is meant. Told before anybody can
        come as this account, so that another one of the name finds it taken."""
        async with self._changing():
            fresh = bound(self._rights, self._sets.documents, self.identity_of)
            if fresh == self._rights:
                return
            try:
                await self._save(fresh)
            except SkepError as error:
                # It holds until the next start, which does this again.
                log.error("whom a rule means was not stored", extra={"code": error.code, "account": name})
                self._rights = fresh
            self._sets = PolicySets(self._sets.documents, fresh.meant)
        self._changed()

    async def reload(self) -> None:
        """Read roles, rules and policy files again, as at start; `problem` tells if that failed."""
        async with self._changing():
            await to_thread.run_sync(self._load, limiter=self._limiter)
        self._changed()

    # ------------------------------------------------------------ private

    def _prepared(self, principal: Principal, operation: Operation, address: Address) -> "Decision | Open":
        facts = Facts(principal=principal, operation=operation, address=address, context=None)
        stages = self._stages(facts)
        if stages.limit is not None:
            return stages.limit
        without = stages.rule or stages.role
        if stages.is_repair:
            return without
        try:
            outcome = self._sets.outcome(facts)
        except NeedsContext:
            return Open(self._sets, facts, without)
        return without if outcome is None else decision_of(outcome, operation)

    def _stages(self, facts: Facts) -> Stages:
        return stages_of(
            facts,
            rights=self._rights,
            role=self._role_rights(facts.principal),
            problem=self.problem,
            account_type=self._account_type,
        )

    def _moment(self, address: Address) -> Moment:
        return Moment(now=self._clock(), thing_types=self._thing_types(address.thing_id))

    def _is_divided(self, thing_id: str) -> bool:
        """Whether any rule about the Thing looks at kinds or names; remembered, since rules may be many."""
        found = self._divided.get(thing_id)
        if found is None:
            found = any(
                (rule.kind is not None or rule.name is not None) and rule.thing.matches(thing_id)
                for rule in self._rights.rules.values()
            )
            self._divided[thing_id] = found
        return found

    def _role_rights(self, principal: Principal) -> RoleRights:
        return BUILT_IN.get(principal.role) or self._rights.roles.get(principal.role, _NO_RIGHTS)

    def _check_owner(self, rule: Rule, standing: Rule | None, principal: Principal) -> None:
        prefix = f"dtw:{principal.account}:"
        if principal.type is AccountType.CONSUMER or not str(rule.thing).startswith(prefix):
            raise Forbidden("agents and services set rules about their own Things, admins about any")
        if standing is not None and standing.set_by != principal.account:
            raise Conflict(f"there is already a rule {rule.rule_id!r}")
        own = [kept for kept in self._rights.rules.values() if kept.set_by == principal.account]
        if standing is None and len(own) >= MAX_RULES_OF_OWNER:
            raise QueueFull(f"account {principal.account!r}", MAX_RULES_OF_OWNER, "rules")

    def _documents(self) -> dict[str, SetDocument]:
        """The sets a change starts from; while policies are broken, those that can be read."""
        return dict(self._sets.documents) if self.problem is None else self._folder.readable()

    def _load(self) -> None:
        try:
            known = self._rights = self._file.load()
            self._is_damaged = False
        except SkepError as error:
            self._is_damaged = True
            self.problem = error.detail
        else:
            self._recheck()
            if self.problem is None and self._rights != known:
                self._file.save(self._rights)
        if self.problem is not None:
            log.error(
                "rights cannot be read; everything is denied until they are repaired", extra={"why": self.problem}
            )

    def _recheck(self) -> None:
        """Take the policy files as they are on disk; they all have to be good."""
        try:
            documents = self._folder.load(self._rights.policies)
            rights = bound(self._rights, documents, self.identity_of)
            sets = PolicySets(documents, rights.meant)
        except SkepError as error:
            self.problem = f"policy {error.detail}"
            return
        self.problem = None
        self._sets = sets
        self._rights = replace(rights, policies=frozenset(documents))

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """One change at a time, finished even if the caller is cancelled."""
        async with self._lock:
            with CancelScope(shield=True):
                yield

    async def _save(self, rights: Rights, also: Callable[[], None] | None = None, *, files_first: bool = True) -> None:
        """Store what is kept (and, with `also`, policy files, which are then read back), then let it count. A power cut
        between the two must leave a policy active, so new files go first and old ones last."""
        if self._is_damaged:
            raise StorageDamaged(f"{self.problem}; nothing is changed until then")
        fresh = replace(rights, version=rights.version + 1)

        def write() -> None:
            if also is not None and files_first:
                also()
            self._file.save(fresh)
            if also is not None and not files_first:
                also()
            self._rights = fresh
            if also is not None:
                self._recheck()

        await to_thread.run_sync(write, limiter=self._limiter)
        self._changed()

    def _changed(self) -> None:
        self.forget()
        for listener in self._listeners:
            try:
                listener()
            except Exception:  # one listener's trouble must not keep others at old rights
                log.exception("a listener failed on changed rights")
