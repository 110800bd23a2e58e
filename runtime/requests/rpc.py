"""RPC: answered by a built-in service at once, or handed to a connected agent; refused otherwise, never queued."""

from collections.abc import Callable
from dataclasses import dataclass

from runtime.ports import Audit, Directory
from runtime.registry import Services
from runtime.requests.calls import Call, Calls
from runtime.requests.deliveries import Deliveries
from runtime.requests.reachable_agents import call_of
from things.addresses import Kind
from things.callbacks import ignore
from things.delivery import DeliveryStatus, State
from things.errors import NotConnected, UnknownThing
from things.messages import Message
from things.places import CALLED_AT


@dataclass(slots=True)
class RPC:
    """Handler of call_rpc, and of actions of built-in services, which are the same call."""

    services: Services
    directory: Directory
    deliveries: Deliveries
    calls: Calls
    clock: Callable[[], int]
    new_id: Callable[[], str]
    deadline_s: float
    audit: Audit

    async def __call__(self, message: Message) -> DeliveryStatus:
        service = self.services.get(message.thing_id)
        if service is not None:
            data = message.data if message.has_data else None
            came_to = CALLED_AT.set(message.origin.place)
            try:
                output = await service.call(message.name, data, message.principal)
            finally:
                CALLED_AT.reset(came_to)
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
        # A call has no row to mark as delivered.
        if not session.request(call_of(call.request_id, message, self.clock()), ignore):
            self.calls.withdraw(call)
            raise NotConnected(entry.agent)
        self.audit.called(message)
        return DeliveryStatus(
            request_id=call.request_id,
            caller_ref=call.caller_ref,
            state=State.DELIVERED,
            updated=self.clock(),
        )
