"""Which of two values of one series is the latest: the one that arrived later, unless its source says that it is older.

The order inside a runtime is that of arrival (the history row), never its wall clock, which may be wrong for a while
and be set right. Only a time that the source itself stated makes a value late, and only where that time can be compared
with the standing value's. `received` is the runtime's clock at arrival; a value without a time of its own has it as
`created` too.
"""

TRUST_WINDOW_US = 5 * 60 * 1_000_000
"""A stated time further ahead of arrival than this is not believed (`received` is used in its place); one not further
behind is near enough for arrival to decide where the standing value has no comparable time."""

SET_BACK_US = 1_000_000
"""A later arrival with an earlier `received` than this: the clock was set back in between. Messages that overtake each
other inside the runtime are closer together."""


def is_late(created: int, received: int, standing_created: int, standing_received: int) -> bool:
    """Whether a value that arrived after the standing one is an older one, delivered late. Times are µs UTC."""
    if created >= standing_created or created == received:
        return False
    lag = received - created
    if standing_received - received > SET_BACK_US:
        # The two arrivals were stamped by clocks that differ. How long each value took still says something: a source
        # that is always behind is not late for it.
        return lag - max(standing_received - standing_created, 0) > TRUST_WINDOW_US
    if lag < 0 or lag > TRUST_WINDOW_US:
        return True
    # A standing time that is still to come was wrong; one that is the runtime's own is not the source's to compare.
    return standing_created <= received and standing_created != standing_received
