"""What the node itself says: responses of its connectors and news of its registry, judged before they go.

They are messages of the runtime's own account, `skep`, to the address they go to, so that policies see them like any
other: sender, type, and the whole envelope with what the connector tells. What a policy blocks is replaced by a refusal
to whoever asked. Bare refusals hold nothing to judge and go as they are.
"""

from collections.abc import Callable, Mapping

from bindings.messaging_node.audience import Audience
from bindings.messaging_node.outbox import Item
from bindings.messaging_node.sessions import NodeSession
from runtime.ports import Sink
from things.envelopes import Document, Envelope, refused, response
from things.errors import SkepError, TooLarge
from things.identity import AccountType, Principal, Role
from things.jsontext import encode
from things.messages import JSONValue, Message, Operation, Origin

Reply = Callable[[Envelope, NodeSession, Mapping[str, JSONValue]], None]
"""Answer a message of a session by this body."""

_SELF = Principal(account="skep", type=AccountType.SERVICE, role=Role.SERVICE, login_id="node")


class Replies:
    """Sends what was judged."""

    def __init__(self, audience: Audience, sink: Callable[[], Sink]) -> None:
        self._audience = audience
        self._sink = sink

    def answer(self, envelope: Envelope, session: NodeSession, body: Mapping[str, JSONValue]) -> None:
        """One response to a session."""
        document = response(envelope, body)
        try:
            self._judge(document)
            text = encode(document)
            if len(text) > session.settings.max_answer_bytes:
                raise TooLarge(session.settings.max_answer_bytes, "the answer")
        except SkepError as error:
            text = encode(response(envelope, refused(error)))
        session.put(text)

    async def tell(self, document: Document) -> None:
        """Give a message of the node's own to whoever listens, unless a policy blocks it; that is logged there."""
        try:
            self._judge(document)
        except SkepError:
            return
        text = encode(document)
        receivers, permitted = self._audience.receivers(str(document["to"]), document)
        item = Item(text, permitted, _SELF.account, is_news=True)
        for receiver in receivers:
            receiver.put_from(item)

    def _judge(self, document: Document) -> None:
        sink = self._sink()
        sink.check(
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
