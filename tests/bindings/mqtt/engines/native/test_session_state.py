"""What is written of a session, and where the work for it is done."""

import base64
import os
import threading
from pathlib import Path

import pytest

from bindings.mqtt.engines.native import SessionStore
from bindings.mqtt.engines.native.sessions import InFlight, Session, Step
from bindings.mqtt.engines.outbox import Outbox
from bindings.mqtt.engines.seam import Publish
from runtime.clocks import wall_clock

pytestmark = pytest.mark.anyio


async def test_session_is_written_as_it_was_when_it_was_put_and_its_payloads_are_encoded_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, threads, encode = tmp_path / "sessions.db", set[str](), base64.b64encode

    def encoded(payload: bytes) -> bytes:
        threads.add(threading.current_thread().name)
        return encode(payload)

    monkeypatch.setattr(base64, "b64encode", encoded)
    session, payload = Session(("alice", "c"), 3_600), os.urandom(1 << 20)
    session.sending()
    session.in_flight[7] = InFlight(Publish(topic="t", payload=payload, qos=1), Step.PUBACK, len(payload))
    session.in_flight[8] = InFlight(None, Step.PUBCOMP, 0)
    session.outbox = Outbox(10, 4 << 20)
    session.outbox.offer(Publish(topic="later", payload=b"w", qos=1, correlation=b"id"), None, 0.0)
    async with SessionStore(path, wall_clock) as store:
        store.put(session, 0)
        session.in_flight.clear()  # it goes on before the thread has its turn
    async with SessionStore(path, wall_clock) as store:
        (read,) = await store.load()

    assert threads
    assert all(name.startswith("mqtt-sessions") for name in threads)
    kept = read.in_flight[7]
    assert kept.message is not None
    assert (kept.message.payload, kept.step, kept.size) == (payload, Step.PUBACK, len(payload))
    assert (read.in_flight[8].message, read.in_flight[8].step) == (None, Step.PUBCOMP)
    assert [(each.message.topic, each.message.correlation) for each in read.outbox or ()] == [("later", b"id")]
