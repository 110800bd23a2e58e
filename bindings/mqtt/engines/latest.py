"""Latest values that are still to be sent to one client: made one by one as they are sent, filter by filter.

A value is read when its turn comes, so it is never older than what was delivered of its topic before. A filter that is
asked for again begins anew in place of what it had left; one client costs at most one pass for each of its filters.
"""

from collections.abc import Iterable, Iterator

from bindings.mqtt.engines.seam import Publish


class Latest:
    """What the grants of one link have left, taken step by step."""

    __slots__ = ("_fresher", "_held", "_values")

    def __init__(self) -> None:
        self._values: dict[str, Iterator[Publish | None]] = {}
        self._held: Publish | None = None
        self._fresher: set[str] = set()

    def __bool__(self) -> bool:
        return self._held is not None or bool(self._values)

    @property
    def is_held(self) -> bool:
        """The next value was made earlier, and has waited for the client."""
        return self._held is not None

    def add(self, topic_filter: str, values: Iterable[Publish | None]) -> None:
        """Send these too, after those of other filters; they take the place of what the filter had left."""
        self.drop(topic_filter)
        self._values[topic_filter] = iter(values)
        # What was delivered before this was asked for is to be sent again ([MQTT-3.8.4-3]).
        self._fresher.clear()

    def drop(self, topic_filter: str) -> None:
        """The filter is taken back."""
        if next(iter(self._values), None) == topic_filter:
            self._held = None
        self._values.pop(topic_filter, None)

    def step(self) -> Publish | None:
        """The value to send next, the same one until it is `taken`; None: nothing yet, step again while there is any
        left."""
        if self._held is None and self._values:
            topic_filter = next(iter(self._values))
            try:
                self._held = next(self._values[topic_filter])
            except StopIteration:
                del self._values[topic_filter]
            if self._held is not None and self._held.topic in self._fresher:
                self._held = None
        return self._held

    def delivered(self, topic: str) -> None:
        """A value of this topic goes to the client on its own: its latest value would only repeat that."""
        self._fresher.add(topic)
        if self._held is not None and self._held.topic == topic:
            self._held = None

    def repeat_all(self) -> None:
        """Something that was `delivered` did not arrive."""
        self._fresher.clear()

    def taken(self) -> None:
        """Go on to the next value."""
        self._held = None
