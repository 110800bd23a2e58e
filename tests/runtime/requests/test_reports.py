"""What an agent may say of a request: its error as text, or as problem details."""

from pathlib import Path

import pytest

from tests.runtime.harness import house
from things.delivery import State
from things.errors import Invalid
from things.messages import JSONValue

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("too hot", "too hot"),
        ({"title": "too hot"}, "too hot"),
        ({"title": "refused", "detail": "95 °C is too hot", "status": 400}, "95 °C is too hot"),
        ({"title": "too hot", "detail": ""}, "too hot"),
    ],
)
async def test_an_error_is_text_or_problem_details(tmp_path: Path, error: JSONValue, text: str) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        sent = await h.invoke(pump, "setSpeed", 3)
        await h.until(lambda: agent.requests)
        ended = await h.report("agent", sent.request_id, state="completed", error=error)

    assert (ended.state, ended.error, ended.is_success) == (State.COMPLETED, text, False)


@pytest.mark.parametrize("error", [5, ["too hot"], {}, {"status": 400}, {"title": 5}, {"detail": {"of": "it"}}, False])
async def test_another_error_is_refused_with_what_it_is_to_be(tmp_path: Path, error: JSONValue) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        sent = await h.invoke(pump, "setSpeed", 3)
        await h.until(lambda: agent.requests)

        with pytest.raises(Invalid, match="text, or a problem object"):
            await h.report("agent", sent.request_id, state="completed", error=error)
