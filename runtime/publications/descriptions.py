"""Thing Descriptions of agents: stored verbatim under the twin's id, then announced to everyone who may read them."""

from collections.abc import Callable
from dataclasses import dataclass

from runtime.admission.quotas import Quotas
from runtime.ports import Directory, Publication, ValueStore
from things.addresses import Kind, TwinID
from things.delivery import DeliveryStatus, State
from things.errors import Invalid, UnknownThing
from things.messages import Message
from things.td import ThingDescription


@dataclass(slots=True)
class Descriptions:
    """Handler of publish_td and remove_td."""

    directory: Directory
    values: ValueStore
    quotas: Quotas
    publish: Callable[[Publication], None]
    clock: Callable[[], int]
    withheld_changed: Callable[[], None]
    """Other properties of a Thing are write-only than before."""

    async def put(self, message: Message) -> DeliveryStatus:
        """Validate and store; raises TDInvalid with every problem, TooMany."""
        if not isinstance(message.data, str):
            raise Invalid("a Thing Description is given as its JSON text")
        td = ThingDescription.parse(message.data, agent=True)
        withheld = self._withheld(message.thing_id)
        with self.quotas.describing(message.sender_id, message.thing_id, len(td.text)):
            await self.directory.put(message.thing_id, td, agent=message.sender_id)
        if td.write_only != withheld:
            self.withheld_changed()
        self._tell(message.thing_id, td.text)
        return DeliveryStatus(request_id="", state=State.COMPLETED)

    async def remove(self, message: Message) -> DeliveryStatus:
        """Remove the twin; its history stays. Raises UnknownThing."""
        withheld = self._withheld(message.thing_id)
        if not await self.directory.remove(message.thing_id):
            raise UnknownThing(message.thing_id)
        if withheld:
            self.withheld_changed()
        self.quotas.removed(message.sender_id, message.thing_id, len(self.values.of_thing(message.thing_id)))
        self.values.drop(message.thing_id)
        self._tell(message.thing_id, b"")
        return DeliveryStatus(request_id="", state=State.COMPLETED)

    def _withheld(self, thing_id: str) -> frozenset[str]:
        standing = self.directory.get(thing_id)
        return frozenset() if standing is None else standing.td.write_only

    def _tell(self, thing_id: str, payload: bytes) -> None:
        # Each session gets the twin TD trimmed to what it may see; this only says that there is a new one.
        self.publish(
            Publication(
                twin=TwinID.parse(thing_id),
                thing_id=thing_id,
                kind=Kind.TD,
                name="",
                value=None,
                payload=payload,
                created=self.clock(),
            )
        )
