"""Requests for Things that hyperties report: from the runtime's ledger to the reporter, and its answers back.

A session speaks for each object it reports, which makes it the agent of that Thing: an action comes as `execute`, a
property write as `update`, from `domain://msg-node.{D}/requests` to the object, with the request's id. The reporter
answers by 100 while it works (a number is progress), then by its result. A request that was not answered when the
connection was lost comes again, with the same id.
"""

from collections.abc import Callable

from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from runtime.ports import Request, Sink
from things.delivery import State
from things.envelopes import Document, Envelope
from things.messages import JSONValue, Message, Operation, Origin


class HypertyRequests:
    """The agent's side of the node."""

    def __init__(self, settings: NodeSettings, sink: Callable[[], Sink]) -> None:
        self._settings = settings
        self._sink = sink
        self.address = f"{settings.node}/requests"

    # ------------------------------------------------------------ who speaks for what

    def speak(self, session: NodeSession, twin: str, url: str) -> None:
        """Requests for this Thing go to this session now; to one of a single exchange nobody could send any."""
        if not session.is_kept:
            return
        session.speaks_for[twin] = url
        if session.is_live:
            self._sink().sessions.take_requests(session, twin)

    def silence(self, session: NodeSession, twin: str) -> None:
        """The object is gone."""
        if session.speaks_for.pop(twin, None) is not None:
            self._sink().sessions.stop_requests(session, twin)

    def back(self, session: NodeSession) -> None:
        """The session has a connection."""
        for twin in session.speaks_for:
            self._sink().sessions.take_requests(session, twin)

    def away(self, session: NodeSession) -> None:
        """It lost its connection: what it did not answer goes back to the ledger."""
        for twin in session.speaks_for:
            self._sink().sessions.stop_requests(session, twin)
        session.requested.clear()

    # ------------------------------------------------------------ requests and answers

    def request(self, session: NodeSession, request: Request, delivered: Callable[[], None]) -> bool:
        """Send one request to the reporter; it counts as delivered when it is written. False for a cancel, which no
        message says."""
        url = session.speaks_for.get(request.thing_id)
        if url is None or request.operation is Operation.CANCEL:
            return False
        session.requested[request.request_id] = url
        session.send(self._message(request, url), delivered)
        return True

    def _message(self, request: Request, url: str) -> Document:
        body: dict[str, JSONValue] = {"requestID": request.request_id, "source": self._user(request.caller)}
        if request.operation is Operation.WRITE_PROPERTY:
            type_ = "update"
            body |= {"attribute": request.name, "value": request.input}
        else:
            type_ = "execute"
            body |= {"method": request.name, "params": request.input}
        return {"id": request.request_id, "type": type_, "from": self.address, "to": url, "body": body}

    async def answered(self, envelope: Envelope, session: NodeSession) -> bool:
        """Take a reporter's answer; False if it answers no request. Raises what the ledger refuses."""
        if envelope.to != self.address:
            return False
        identity = str(envelope.id)
        if session.requested.get(identity) != envelope.sender:
            return True  # late, or never asked
        reported = _reported(envelope)
        if reported["state"] != State.RUNNING.value:
            del session.requested[identity]
        sink = self._sink()
        await sink.handle(
            Message(
                operation=Operation.REPORT_STATUS,
                principal=session.principal,
                thing_id="",
                name=identity,
                data=reported,
                received=sink.clock(),
                origin=Origin(binding="node", session_id=session.session_id, source=session.source),
            )
        )
        return True

    def _user(self, account: str) -> str:
        return f"user://{self._settings.domain}/{account}"


def _reported(envelope: Envelope) -> dict[str, JSONValue]:
    """What a response says of its request, as agents report it on every binding."""
    code, value = envelope.body.get("code"), envelope.body.get("value")
    if code == 100:
        is_progress = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100
        return {"state": State.RUNNING.value, **({"progress": value} if is_progress else {})}
    if isinstance(code, int) and 200 <= code < 300:
        return {"state": State.COMPLETED.value, **({"output": value} if "value" in envelope.body else {})}
    detail = envelope.body.get("description") or envelope.body.get("desc") or f"refused ({code})"
    return {"state": State.COMPLETED.value, "error": str(detail)[:1_000]}
