"""A session as JSON, for the file in which sessions survive a restart.

Times are those of the store's clock there (µs UTC), since the engine's begins anew with each process.
"""

import base64
from functools import lru_cache
from sys import intern
from typing import Any

from pydantic_core import to_json

from bindings.mqtt.engines.native.sessions import DepartedLink, InFlight, Key, Session, Step, Will, comes_again
from bindings.mqtt.engines.outbox import Outbox
from bindings.mqtt.engines.seam import Flow, Limits, Link, Publish, SubscribeOptions
from things.identity import AccountType, Principal


def state_of(session: Session, now: float, now_us: int, published_row: int) -> dict[str, Any]:
    """All of a session but its key, its end and the QoS 2 ids it has received, as it is now; `text_of` makes JSON of
    it. `now` is the engine's clock, `now_us` the store's."""
    flight = [
        (packet_id, int(entry.step), entry.size, entry.message)
        for packet_id, entry in session.in_flight.items()
        if entry.message is None or not comes_again(entry.message)
    ]
    waiting = [each for each in session.outbox or () if not each.message.row_id and not comes_again(each.message)]
    will, link = session.will, session.link or session.parked
    return {
        "client": None if link is None else _client(link),
        "expirySeconds": session.expiry_s,
        "cursor": session.position(published_row),
        "isCaughtUp": session.is_caught_up,
        "filters": [filter_state(text, options) for text, options in session.filters.items()],
        "inFlight": flight,
        "waiting": [each.message for each in waiting],
        "queued": [now_us - int((now - each.queued_at) * 1e6) for each in waiting],
        "will": None
        if will is None
        else {
            "message": _message(will.message),
            "due": now_us + int((will.due - now) * 1e6),
            **_client(will.link),
        },
    }


def text_of(state: dict[str, Any]) -> bytes:
    """The JSON text of a state: megabytes, where much is in flight. So it is made in the thread that writes it, message
    by message, since each of these steps keeps the loop from the interpreter."""
    rest = {name: value for name, value in state.items() if name not in ("inFlight", "waiting")}
    flight = (
        to_json([packet_id, step, size, None if message is None else _message(message)])
        for packet_id, step, size, message in state["inFlight"]
    )
    waiting = (to_json(_message(message)) for message in state["waiting"])
    pieces = (to_json(rest)[:-1], b',"inFlight":[', b",".join(flight), b'],"waiting":[', b",".join(waiting), b"]}")
    return b"".join(pieces)


def filter_state(text: str, options: SubscribeOptions) -> list[Any]:
    """One filter of a session."""
    return [
        text,
        options.qos,
        options.no_local,
        options.retain_as_published,
        options.retain_handling,
        options.subscription_id,
        options.since_row,
    ]


def read_filter(state: list[Any]) -> tuple[str, SubscribeOptions]:
    """The filter that `filter_state` described."""
    text, qos, no_local, as_published, handling, subscription_id, *since_row = state
    return text, SubscribeOptions(
        qos=qos,
        no_local=no_local,
        retain_as_published=as_published,
        retain_handling=handling,
        subscription_id=subscription_id,
        # Files of earlier versions say nothing about rows.
        since_row=since_row[0] if since_row else 0,
    )


def _client(link: Link) -> dict[str, Any]:
    principal = link.principal
    return {
        "account": principal.account,
        "type": str(principal.type),
        "role": str(principal.role),
        "token": principal.token_id,
        "login": principal.login_id,
        "accountID": principal.account_id,
        "credential": principal.credential,
        "source": link.source,
        "level": link.protocol_level,
    }


_same = lru_cache(maxsize=1_024)(int)
"""One number for all sessions that have the same."""


def _departed(key: Key, client: dict[str, Any]) -> DepartedLink:
    # Of files of earlier versions nobody knows id and credential; only what a stored login or token vouches for stands.
    names = ("account", "type", "role", "token", "login", "accountID", "credential")
    source = client["source"]
    return DepartedLink(
        principal=_principal(*(client.get(name) for name in names)),
        client_id=key[1],
        source=None if source is None else intern(source),
        protocol_level=client["level"],
    )


@lru_cache(maxsize=1_024)
def _principal(
    account: str,
    type_: str,
    role: str,
    token_id: str | None,
    login_id: str | None,
    account_id: str | None,
    credential: str | None,
) -> Principal:
    """One for all sessions that have the same."""
    return Principal(
        account=intern(account),
        type=AccountType(type_),
        role=intern(role),
        token_id=token_id,
        login_id=login_id,
        account_id=account_id,
        credential=credential,
    )


def read_session(
    key: Key, state: dict[str, Any], limits: Limits, now: float, now_us: int, published_row: int
) -> Session:
    """The session that `state_of` described, without a connection. `published_row`: up to there those that had
    caught up went on to be given all."""
    session = Session(key, _same(state["expirySeconds"]))
    # Files of earlier versions say nothing about rows.
    session.cursor = state.get("cursor")
    if session.cursor is not None and state["isCaughtUp"]:
        session.cursor = max(session.cursor, published_row)
        # Nothing is given to it any more: that has to be on disk before what others are told is.
        session.dirty = True
    session.filters.update(map(read_filter, state["filters"]))
    if state["inFlight"]:
        session.sending()
    for packet_id, step, size, message in state["inFlight"]:
        session.in_flight[packet_id] = InFlight(None if message is None else _publish(message), Step(step), size)
        session.in_flight_bytes += size
    if state["waiting"]:
        session.outbox = Outbox(limits.max_queued, limits.max_queued_bytes)
        # Files of earlier versions do not say since when: what expires has its time once more.
        queued = state.get("queued") or [now_us] * len(state["waiting"])
        for message, at in zip(state["waiting"], queued, strict=True):
            session.outbox.offer(_publish(message), None, now - (now_us - at) / 1e6)
    if (will := state["will"]) is not None:
        session.will = Will(
            message=_publish(will["message"]),
            link=_departed(key, will),
            due=now + (will["due"] - now_us) / 1e6,
        )
    # Files of earlier versions do not say whose the session was; what it asked for waits after its next connection.
    if (client := state.get("client")) is not None:
        session.last = _departed(key, client)
    return session


def _message(message: Publish) -> list[Any]:
    return [
        message.topic,
        base64.b64encode(message.payload).decode(),
        message.qos,
        message.retain,
        str(message.flow),
        [list(pair) for pair in message.user_properties],
        message.expiry_s,
        message.response_topic,
        None if message.correlation is None else base64.b64encode(message.correlation).decode(),
        message.content_type,
        message.payload_is_text,
        list(message.subscription_ids),
    ]


def _publish(stored: list[Any]) -> Publish:
    topic, payload, qos, retain, flow, properties, expiry_s, response_topic, correlation, content_type, is_text, ids = (
        stored
    )
    return Publish(
        topic=topic,
        payload=base64.b64decode(payload),
        qos=qos,
        retain=retain,
        flow=Flow(flow),
        user_properties=[(name, value) for name, value in properties],
        expiry_s=expiry_s,
        response_topic=response_topic,
        correlation=None if correlation is None else base64.b64decode(correlation),
        content_type=content_type,
        payload_is_text=is_text,
        subscription_ids=ids,
    )
