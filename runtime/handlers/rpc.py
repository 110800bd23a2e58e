"""RPC: answered by a built-in service at once, or handed to a connected agent; refused otherwise, never queued."""

from collections.abc import Callable
from dataclasses import dataclass

from runtime.calls import Call, Calls
from runtime.deliveries import Deliveries
from runtime.offers import call_of
from runtime.ports import Directory
from runtime.services import Services
from things.addresses import Kind
from things.delivery import DeliveryStatus, State
from things.errors import NotConnected, UnknownThing
from things.messages import Message


@dataclass(slots=True)
class RPC:
    """Handler of call_rpc, and of actions of built-in services, which are the same call."""

    services: Services
    directory: Directory
    deliveries: Deliveries
    calls: Calls
    clock: Callable[[], int]
    new_id: Callable[[], str]
    deadline_s: float = 60.0
    accepted: Callable[[Message], None] = lambda message: None
    """Told of each call that an agent has taken: who called what, for the audit log."""

    async def __call__(self, message: Message) -> DeliveryStatus:
        service = self.services.get(message.thing_id)
        if service is not None:
            data = message.data if message.has_data else None
            output = await service.call(message.name, data, message.principal)
            return DeliveryStatus(
                request_id=self.new_id(),
                caller_ref=message.correlation,
                state=State.COMPLETED,
                output=output,
                updated=self.clock(),
            )
        return self._handed_over(message)

    def _handed_over(self, message: Message) -> DeliveryStatus:
        entry = self.directory.get(message.thing_id)
        if entry is None or entry.agent is None:
            raise UnknownThing(message.thing_id)
        session = self.deliveries.session_of(entry.agent, message.thing_id)
        if session is None:
            raise NotConnected(entry.agent)
        call = Call(
            request_id=self.new_id(),
            caller=message.sender_id,
            caller_ref=message.correlation,
            caller_session=message.origin.session_id,
            agent=entry.agent,
            session=session,
        )
        own = entry.td.skep_deadline_s(message.name, Kind.ACTION)
        self.calls.begin(call, self.deadline_s if own is None else own)
        if not session.request(call_of(call.request_id, message, self.clock()), _nothing):
            self.calls.withdraw(call)
            raise NotConnected(entry.agent)
        self.accepted(message)
        return DeliveryStatus(
            request_id=call.request_id,
            caller_ref=call.caller_ref,
            state=State.DELIVERED,
            updated=self.clock(),
        )


def _nothing() -> None:
    """A call has no ledger row to mark as delivered."""
