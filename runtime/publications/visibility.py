"""What may be asked for and what may be seen: the rights to publications, as the authorizer has them now, and what
Thing Descriptions withhold from everybody."""

from runtime.ports import Authorizer, Directory, Pattern
from things.addresses import Address, Kind
from things.identity import Principal
from things.messages import Operation

SEEN_AS: dict[Kind, Operation] = {
    Kind.EVENT: Operation.SUBSCRIBE,
    Kind.PROPERTY: Operation.OBSERVE,
    Kind.TD: Operation.READ,
    # The progress of actions is for those who may invoke them.
    Kind.ACTION: Operation.INVOKE_ACTION,
}
"""The operation that receiving a publication of each kind amounts to."""


_NOBODY = "-"
"""No agent can be called so; a rule that names agents or Things does not mean it."""


def may_read(
    authorizer: Authorizer, directory: Directory, principal: Principal, operation: Operation, address: Address
) -> bool:
    """Whether `principal` may read, observe or look up the history of what is at an address: the one answer for all
    that shows stored values. Nobody gets values of a property that is write-only as its Thing is described now, even if
    they were published when it was not."""
    return not _is_withheld(directory, address) and authorizer.decide(principal, operation, address).allowed


def _is_withheld(directory: Directory, address: Address) -> bool:
    """Whether an address is that of a property that is write-only now."""
    if address.kind is not Kind.PROPERTY or address.name is None:
        return False
    entry = directory.get(address.thing_id)
    return entry is not None and address.name in entry.td.write_only


def could_see(authorizer: Authorizer, principal: Principal, pattern: Pattern) -> bool:
    """Whether anything that matches could be given to `principal` now."""
    kinds = (pattern.kind,) if pattern.kind is not None else tuple(Kind)
    # What a role allows in general shows on a Thing of one's own, and such decisions are remembered.
    guess = f"dtw:{pattern.agent or principal.account}:{pattern.thing or 'any'}"
    decide, could_allow = authorizer.decide, authorizer.could_allow
    return any(decide(principal, SEEN_AS[kind], Address(guess, kind, pattern.name)).allowed for kind in kinds) or any(
        could_allow(principal, SEEN_AS[kind], agent=pattern.agent, thing=pattern.thing, kind=kind, name=pattern.name)
        for kind in kinds
    )


def may_subscribe(authorizer: Authorizer, principal: Principal, pattern: Pattern) -> bool:
    """Whether `principal` may ask for what matches now. Agents and Things that are hidden from it are answered as those
    are that nobody has: who may ask for these may ask for them, and gets nothing of either."""
    if could_see(authorizer, principal, pattern):
        return True
    if pattern.agent is None:
        return False
    if pattern.thing is not None:
        # As requests are judged: what cannot be read as a whole is unknown, whatever rules say of single names.
        is_shown = authorizer.decide(principal, Operation.READ, Address(f"dtw:{pattern.agent}:{pattern.thing}")).allowed
    else:
        is_shown = authorizer.could_allow(
            principal, Operation.READ, agent=pattern.agent, thing=None, kind=Kind.TD, name=None
        )
    return not is_shown and could_see(authorizer, principal, Pattern(_NOBODY, _NOBODY, pattern.kind, pattern.name))
