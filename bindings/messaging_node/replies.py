"""What the node itself says: responses of its connectors and news of its registry, judged before they go.

They are messages of the runtime's own account, `skep`, to the address they go to, so that policies see them like any
other: sender, type, and the whole envelope with what the connector tells. What a policy blocks is replaced by a refusal
to whoever asked. Bare refusals hold nothing to judge and go as they are.
"""

from collections.abc import Callable, Mapping

from bindings.messaging_node.routes import Routes
from bindings.messaging_node.sessions import NodeSession
from runtime.ports import Sink
from things.envelopes import Document, Envelope, refused, response
from things.errors import SkepError
from things.identity import AccountType, Principal, Role
from things.jsontext import encode
from things.messages import JSONValue, Message, Operation, Origin

Reply = Callable[[Envelope, NodeSession, Mapping[str, JSONValue]], None]
"""Answer a message of a session by this body."""

_SELF = Principal(account="skep", type=AccountType.SERVICE, role=Role.SERVICE, login_id="node")


class Replies:
    """Sends what was judged."""

    def __init__(self, routes: Routes, sink: Callable[[], Sink]) -> None:
        self._routes = routes
        self._sink = sink

    def answer(self, envelope: Envelope, session: NodeSession, body: Mapping[str, JSONValue]) -> None:
        """One response to a session."""
        document = response(envelope, body)
        try:
            self._judge(document)
        except SkepError as error:
            document = response(envelope, refused(error))
        session.send(document)

    async def tell(self, document: Document) -> None:
        """Give a message of the node's own to whoever listens, unless a policy blocks it; that is logged there."""
        try:
            self._judge(document)
        except SkepError:
            return
        text = encode(document)
        for receiver in self._routes.receivers(str(document["to"])):
            receiver.put(text)

    def _judge(self, document: Document) -> None:
        sink = self._sink()
        sink.judge(
            Message(
                operation=Operation.SEND,
                principal=_SELF,
                thing_id=str(document["to"]),
                name=str(document["type"]),
                data=document,
                received=sink.clock(),
                origin=Origin(binding="node"),
            )
        )
