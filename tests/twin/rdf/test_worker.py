"""The index process: frames in, answers out, and what becomes of queries that end their process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from things.jsontext import encode

WHOLE = {"usual": 63, "entries": True, "others": {}}
TD = {"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Lamp", "properties": {"level": {}}}


class Worker:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def tell(self, *frames: dict[str, Any], by: int = 1 << 20) -> None:
        """Write frames, in pieces of so many bytes."""
        assert self._process.stdin is not None
        text = b"".join(len(each).to_bytes(4, "big") + each for each in map(encode, frames))
        for start in range(0, len(text), by):
            self._process.stdin.write(text[start : start + by])
            self._process.stdin.flush()

    def ask(self, number: int, query: str, **sight: Any) -> None:
        self.tell({"ask": number, "query": query, "accepted": [], "sight": WHOLE | sight})

    def told(self) -> tuple[dict[str, Any], bytes]:
        out = self._process.stdout
        assert out is not None
        head = json.loads(out.read(int.from_bytes(out.read(4), "big")))
        return head, out.read(head.get("bytes", 0))


@contextmanager
def worker() -> Iterator[Worker]:
    process = subprocess.Popen([sys.executable, "-m", "twin.rdf.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    try:
        yield Worker(process)
        process.stdin.close()
        assert process.wait(30) == 0, "it ends with its input"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def put(thing_id: str) -> dict[str, Any]:
    return {"put": thing_id, "td": json.dumps(TD), "agent": None, "overlay": {}, "registration": {}}


def test_a_query_sees_what_was_put_before_it_however_the_frames_come() -> None:
    count = "SELECT (COUNT(?t) AS ?n) { ?t a <https://www.w3.org/2019/wot/td#Thing> }"
    with worker() as index:
        index.tell(put("urn:1"), put("urn:2"), by=7)
        index.ask(1, count)
        index.tell({"remove": "urn:1"}, put("urn:2"))
        index.ask(2, count)
        answers = {head["number"]: body for head, body in (index.told(), index.told())}

    assert [json.loads(answers[number])["results"]["bindings"][0]["n"]["value"] for number in (1, 2)] == ["2", "1"]


@pytest.mark.parametrize("silent", ["", "SILENT"])
def test_nothing_can_be_opened_while_a_query_runs(silent: str) -> None:
    # The word is hidden from the check by the escape; what the language makes of it is refused or empty.
    query = f"SELECT * {{ \\u0053ERVICE {silent} <http://127.0.0.1:18099/> {{ ?s ?p ?o }} }}"
    with worker() as index:
        index.ask(1, query)
        head, body = index.told()

    assert "error" in head or json.loads(body)["results"]["bindings"] in ([], [{}])


def test_a_query_that_takes_all_memory_ends_alone() -> None:
    product = " . ".join(f"?a{n} ?b{n} ?c{n}" for n in range(5))
    with worker() as index:
        index.tell(*(put(f"urn:{number}") for number in range(20)))
        index.ask(1, f"SELECT * {{ {product} }} ORDER BY ?c0")
        index.ask(2, "ASK {}")
        answers = {head["number"]: head for head, _ in (index.told(), index.told())}

    assert answers[1]["error"]["code"] in ("too-large", "invalid")
    assert "error" not in answers[2]
