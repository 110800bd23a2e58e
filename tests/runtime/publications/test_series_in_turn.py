"""Series that come in turn, one more than are remembered, are still mostly known: no cost rises by steps."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runtime.ports import Pattern
from runtime.publications.audiences import Audiences
from tests.runtime.doubles import agent_principal, principal
from tests.runtime.harness import house
from things.addresses import Kind
from things.messages import Operation

pytestmark = pytest.mark.anyio

BOUND = 60
TURNS = 20
SERIES = [("dtw:mill:pump", f"value{number}") for number in range(BOUND + 1)]
TD = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Pump",
    "properties": {name: {"type": "number"} for _, name in SERIES},
}
MOSTLY = 0.8
"""Of the look-ups after the first turn. A map that is emptied, or that drops the oldest, would know none of them."""


def _count(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, counts: Counter[str]) -> None:
    original = getattr(owner, method)

    def counted(*given: Any, **more: Any) -> Any:
        counts[method] += 1
        return original(*given, **more)

    monkeypatch.setattr(owner, method, counted)


async def test_a_warm_event_is_checked_judged_and_fanned_out_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.admission.verdicts.MAX_KNOWN", BOUND)
    counts = Counter[str]()
    async with house(tmp_path) as h:
        await h.publish_td("mill", "pump", TD)
        watching = h.session(principal("alice"))
        h.runtime.sessions.subscribe(watching, Pattern("mill"), "a")
        sessions = h.runtime.sessions
        # One for the series and one for its subscriber.
        sessions._audiences = Audiences(
            sessions._subscriptions, sessions.authorizer, sessions.principal_of, most=2 * BOUND
        )
        _count(monkeypatch, Audiences, "_permitted", counts)
        _count(monkeypatch, type(h.runtime._router), "remaining", counts)
        sender = agent_principal("mill")
        for turn in range(TURNS):
            for thing_id, name in SERIES:
                message = h.message(Operation.PUBLISH_PROPERTY, sender, thing_id, name, float(turn))
                h.runtime._verdicts.check(message)
                assert len(sessions._audiences.of((thing_id, Kind.PROPERTY, name))) == 1

    looked_up = len(SERIES) * (TURNS - 1)
    assert set(counts) == {"_permitted", "remaining"}
    for what, missed in counts.items():
        assert missed - len(SERIES) < (1 - MOSTLY) * looked_up, what
        assert missed > len(SERIES), what
