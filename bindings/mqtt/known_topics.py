"""What the topics that clients publish to mean, remembered for those of values and events: agents repeat theirs."""

from typing import NamedTuple

from bindings.mqtt.topics import OtherTopic, PublishEvent, PublishProperty, parse_topic
from things.addresses import TwinID
from things.bounded import Bounded
from things.messages import Operation

MAX_KNOWN = 65_536
MAX_KNOWN_CHARS = 256
"""Of a topic that is remembered; longer ones are read each time."""


class ValueTopic(NamedTuple):
    """The topic of one series: an event or a property of one Thing."""

    operation: Operation
    thing_id: str
    thing: str
    name: str


class KnownTopics:
    """Reads the topics of publishes."""

    __slots__ = ("_known",)

    def __init__(self, most: int = MAX_KNOWN) -> None:
        """`most`: how many topics are remembered."""
        self._known: Bounded[tuple[str, str], ValueTopic] = Bounded(most)

    def __contains__(self, key: tuple[str, str]) -> bool:
        """Whether the topic (account, text) is remembered."""
        return key in self._known

    def parse(self, account: str, text: str) -> OtherTopic | ValueTopic:
        """What an account's topic means; raises SkepError."""
        return self._known.get((account, text)) or self._read(account, text)

    def _read(self, account: str, text: str) -> OtherTopic | ValueTopic:
        topic = parse_topic(text, account)
        if not isinstance(topic, PublishEvent | PublishProperty):
            return topic
        operation = Operation.PUBLISH_EVENT if isinstance(topic, PublishEvent) else Operation.PUBLISH_PROPERTY
        value = ValueTopic(operation, str(TwinID(topic.agent, topic.thing)), topic.thing, topic.name)
        if len(text) <= MAX_KNOWN_CHARS:
            self._known[account, text] = value
        return value
