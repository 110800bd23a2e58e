"""The subscription manager at `/sm`: who hears which address, in the three dialects clients speak.

| dialect | members |
| --- | --- |
| final | `resources: [url…]` |
| middle | `subscribe: [url…]`, `unsubscribe: [url…]` |
| first | `resource: <obj>` and `childrenResources` or `children`: `<obj>/changes` and each child |

The first claims nothing: any number of observers listen to the children of one object. Replies hold nothing but their
code. Double and unknown subscriptions are no errors.
"""

from collections.abc import Callable, Sequence

from bindings.messaging_node.audience import Audience
from bindings.messaging_node.connectors import OK, Body
from bindings.messaging_node.routes import Routes, is_open
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from things.envelopes import Envelope, Unknown, scheme_of, texts
from things.errors import Forbidden, Invalid

Things = Callable[[str, NodeSession, bool], bool]
"""Subscribe (or unsubscribe) a session to a Thing's address; False if the address is no Thing's."""


class Subscriptions:
    """Answers at `domain://msg-node.{D}/sm`."""

    def __init__(self, settings: NodeSettings, routes: Routes, audience: Audience, things: Things) -> None:
        self._settings = settings
        self._routes = routes
        self._audience = audience
        self._things = things
        self.addresses: Sequence[str] = (f"{settings.node}/sm",)

    async def answer(self, envelope: Envelope, caller: NodeSession) -> Body | None:
        match envelope.type:
            case "subscribe":
                addresses = self._asked(envelope, "subscribe")
                for address in addresses:
                    self._check(address)
                    self._audience.check(address, caller, envelope.document)
                done: list[str] = []
                try:
                    for address, claims in addresses.items():
                        if address in caller.subscribed:
                            continue
                        if self._things(address, caller, True):
                            self._routes.note_heard(address, caller)
                        else:
                            self._routes.listen(address, caller, claims=claims)
                        done.append(address)
                except Exception:
                    # All or nothing: a refusal must not leave half a subscription behind.
                    for address in done:
                        self._end(address, caller)
                    raise
                return OK
            case "unsubscribe":
                for address in self._asked(envelope, "unsubscribe"):
                    self._end(address, caller)
                return OK
            case _:
                raise Unknown(f"the subscription manager takes subscribe and unsubscribe, not {envelope.type!r}")

    def _end(self, address: str, caller: NodeSession) -> None:
        if self._things(address, caller, False):
            self._routes.note_unheard(address, caller)
        else:
            self._routes.unlisten(address, caller)

    def _check(self, address: str) -> None:
        if scheme_of(address) in ("domain", "global", "mn") and not is_open(address):
            raise Forbidden(f"{address[:80]!r} is the node's own")

    def _asked(self, envelope: Envelope, middle: str) -> dict[str, bool]:
        """The addresses that a message names in any dialect, or in two at once; each with whether it is claimed."""
        body, limit = envelope.body, self._settings.max_addresses_per_request
        found = dict.fromkeys(texts(body.get("resources"), limit=limit) + texts(body.get(middle), limit=limit), True)
        resource = body.get("resource")
        if isinstance(resource, str):
            children = texts(body.get("childrenResources"), limit=limit) + texts(body.get("children"), limit=limit)
            for address in texts([f"{resource}/changes"], limit=limit):
                found.setdefault(address, False)
            for child in children:
                # One generation of the documents writes a child without the level between.
                for address in texts([f"{resource}/children/{child}", f"{resource}/{child}"], limit=limit):
                    found.setdefault(address, False)
        if not found:
            raise Invalid("name the addresses in `resources`")
        return found
