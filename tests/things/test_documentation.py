"""What the page on Thing Descriptions shows is true."""

import json
import re
from pathlib import Path

from things.context import CONTEXT
from things.filters import MAX_COMPARISONS, MAX_FILTER_CHARS, MAX_NESTING, parse_filter
from things.findings import MAX_FINDINGS
from things.schemas import MAX_PATTERN_CHARS, MAX_PATTERNS
from things.td import MAX_TD_BYTES, MAX_TD_DEPTH, ThingDescription
from things.td_rules import MAX_ID_CHARS, TD_11
from things.thing_model import ThingModel

PAGE = (Path(__file__).parents[2] / "docs" / "thing-descriptions.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_thing_descriptions_shown_are_valid() -> None:
    known = {entry["@id"] for entry in CONTEXT["@graph"]}

    for block in blocks("json"):
        ThingDescription.parse(block, agent=True)
        assert set(re.findall(r'"(skep:\w+)"', block)) <= known


def test_filters_shown_are_filters() -> None:
    for line in "".join(blocks("filter")).splitlines():
        parse_filter(line)


def test_python_shown_runs() -> None:
    model = json.dumps({"@context": TD_11, "@type": "tm:ThingModel", "title": "No {{SERIAL}}"})
    for block in blocks("python"):
        names: dict[str, object] = {"text": model, "models": {}}
        exec(block, names)  # the page is ours
        assert isinstance(names["td"], ThingDescription)
        assert isinstance(names["model"], ThingModel)
        assert names["td"].title == "No 17"


def test_limits_shown_are_the_limits() -> None:
    assert (MAX_TD_BYTES, MAX_TD_DEPTH, MAX_ID_CHARS) == (256 * 1024, 32, 512)
    assert (MAX_PATTERNS, MAX_PATTERN_CHARS, MAX_FINDINGS) == (50, 1024, 200)
    assert (MAX_FILTER_CHARS, MAX_COMPARISONS, MAX_NESTING) == (1_000, 50, 16)
