"""`docs/doors.md`: the table of the contract as the doors were found.

`SKEP_DOORS_PAGE=write python -m pytest tests/doors` writes it.
"""

from collections.abc import Iterator, Mapping, Sequence

from tests.doors.contract import Accepted, Refused
from tests.doors.table import NAMES, TABLE, Case, Description, Reading, Request
from tests.doors.world import Outcome

HEAD = """# Doors

<!-- Written by tests/doors from what the doors answered: SKEP_DOORS_PAGE=write python -m pytest tests/doors -->

There are many ways into a runtime and one contract behind them: what is published, asked or refused is so at every
door, with the same rows in the stores, the same code, the same sentence and the same problem document, as far as the
door has room for it. `tests/doors` sends every case below through every door, and this page is what it finds.

| told by | what of a refusal |
| --- | --- |
| HTTP, web thing protocol, MQTT 3.1.1 (`inbox/{you}/refused`; MQTT 5 for QoS 0) | the problem document |
| reports of batches | code and sentence of each item |
| MQTT 5 | reason code; the sentence as reason string, the code as user property `code` |
| messaging node | `error` is the code, `description` the sentence, `code` the node's own number |
| SDK | the exception of that code; what it refuses before sending, it says in words of its own |

Where a fault lies in the bytes (not JSON, not UTF-8, too large), sentences name the place in what was sent, which
differs with what stands around it. A sender over its rate is refused (`rate-limited`) by HTTP and the web thing
protocol; batches, MQTT and the messaging node read it more slowly and take everything.

A door joins by an adapter in `tests/doors/doors.py`: a class with `send`, which says one thing in the words of its
protocol and returns what it was told, and a line in `DOORS`. The rest of the suite is the same for all.

✓: as it says in the second column. –: the door cannot say it; the reasons are at the end.
"""


def page(found: Mapping[str, Mapping[str, Outcome]], doors: Sequence[str]) -> str:
    """The page of what was found, by title of the case and name of the door."""
    lines = [HEAD]
    for group, cases in TABLE.items():
        lines.append(f"\n## {group}\n")
        lines.append(f"| sent | comes to | {' | '.join(doors)} |")
        lines.append(f"| --- | --- |{' --- |' * len(doors)}")
        for title, row in _rows(cases):
            cells = [_cell(row, [found[case.title][door] for case in row]) for door in doors]
            lines.append(f"| {title} | {_meaning(row[0])} | {' | '.join(cells)} |")
    lines.append("\n## What a door cannot say\n")
    for door in doors:
        reasons = _reasons(outcomes[door].reason for outcomes in found.values())
        if reasons:
            lines.append(f"- {door}: " + "; ".join(f"{reason} ({count})" for reason, count in reasons.items()) + ".")
    return "\n".join(lines) + "\n"


def is_as_said(case: Case, outcome: Outcome) -> bool:
    """Whether a door answered what the table says."""
    answer = outcome.answer
    if isinstance(answer, Refused):
        return answer.code == case.code and list(outcome.left) == list(case.left)
    return (
        isinstance(answer, Accepted)
        and case.code is None
        and answer.output == case.output
        and list(outcome.left) == list(case.left)
    )


def _rows(cases: Sequence[Case]) -> Iterator[tuple[str, Sequence[Case]]]:
    if cases is not NAMES:
        yield from ((case.title, [case]) for case in cases)
        return
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        kinds.setdefault(case.title.partition(": ")[2], []).append(case)
    for kind, row in kinds.items():
        yield f"{kind}: {', '.join(case.title.partition(':')[0] for case in row)}", row


def _cell(row: Sequence[Case], outcomes: Sequence[Outcome]) -> str:
    said = [(case, outcome) for case, outcome in zip(row, outcomes, strict=True) if outcome.reason is None]
    if not said:
        return "–"
    if not all(is_as_said(case, outcome) for case, outcome in said):
        return "✗"
    return "✓" if len(said) == len(row) else f"✓ {len(said)} of {len(row)}"


def _meaning(case: Case) -> str:
    left = [_kept(each) for each in case.left]
    if case.code is not None:
        return ", ".join([f"`{case.code}`", *left])
    return ", ".join(left) or ("its value" if case.output is not None else "nothing new")


def _kept(left: object) -> str:
    match left:
        case Reading(quality=0):
            return "stored"
        case Reading(quality=quality):
            return f"stored, quality {quality}"
        case Request(state=state):
            return state
        case Description(title=None):
            return "removed"
        case _:
            return "described"


def _reasons(given: Iterator[str | None]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason in given:
        if reason is not None:
            counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items()))
