"""`skep trace`: one request through all that it passed, in the order of time.

Each part is asked for what it keeps: the ledger for its steps, the audit log for where the request came from, the
rights for the rule that decides, history for what the Thing said meanwhile. Who may not read one of them is told so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.output import items_of, print_json, print_table
from skep.consumer import Consumer
from things.addresses import TwinID, encode_segment
from things.decisions import CONFIRM
from things.delivery import FINAL, Reason, State
from things.errors import Forbidden, NotFound, SkepError, Unauthenticated, UnknownRequest
from things.messages import JSONValue
from things.service_ids import ACCOUNTS, OWN_RIGHTS, REQUESTS, RIGHTS
from things.times import parse_time, rfc3339

ACTS = 1_000
"""Of the audit log, the latest are looked through."""
ROWS = 20
AFTERWARDS_US = 5_000_000
"""How long after its end what a Thing says still counts to a request."""
CONFIRMED_US = 60_000_000

_ENDS = {
    Reason.EXPIRED: "nothing of it has left the runtime; asking again is safe",
    Reason.TIMEOUT: "it was handed over and not answered in time; the device may have acted",
    Reason.AGENT_ERROR: "the agent failed; the device may have acted",
    Reason.SUPERSEDED: "a newer write took its place",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one part of the runtime knows; `at` is None for what is so now."""

    at: str | None
    part: str
    what: str


@click.command(
    epilog="""\b
Examples:
  skep trace 019f2c9e-5f7b-7d33-a31d-0b6a4a1c9f10 --home ./site
  skep trace tea --caller ann --home ./site        by the reference (correlation data) that ann gave it"""
)
@click.argument("request")
@click.option("--caller", help="Whose reference REQUEST is. [default: one's own]")
@access_options
def trace(access: Access, request: str, caller: str | None) -> None:
    """Follow one request through doors, checks, ledger, deliveries and rows.

    REQUEST is its id, or the reference that its caller gave it: Idempotency-Key, correlation data.
    """

    async def work(consumer: Consumer) -> tuple[dict[str, JSONValue], list[Step], str]:
        found = await _found(consumer, request, caller)
        steps = [*await _door(consumer, found), *await _checks(consumer, found), *_ledger(found)]
        steps += await _rows(consumer, found)
        # What is so now comes last; of one moment, parts are in the order in which a request passes them.
        steps.sort(key=lambda step: (step.at is None, parse_time(step.at) if step.at else 0))
        return found, steps, await _verdict(consumer, found)

    found, steps, verdict = with_consumer(access, work)
    if access.json:
        print_json({"request": found, "steps": [asdict(step) for step in steps], "verdict": verdict})
        return
    began = parse_time(str(found["created"]))
    print_table(
        ("at", "after", "part", "what"),
        [(_clock(step.at), _after(step.at, began), step.part, step.what) for step in steps],
    )
    click.echo(f"{found['state']}: {verdict}")


async def _found(consumer: Consumer, request: str, caller: str | None) -> dict[str, JSONValue]:
    """Raises UnknownRequest."""
    if caller is None:
        try:
            return await consumer.request_document(request)
        except UnknownRequest:
            pass
    given: dict[str, JSONValue] = {"callerRef": request}
    if caller is not None:
        given["caller"] = caller
    found = await consumer.call(REQUESTS, "readRequest", given)
    return found if isinstance(found, dict) else {}


# ---------------------------------------------------------------- parts


async def _door(consumer: Consumer, request: Mapping[str, JSONValue]) -> list[Step]:
    """Where it came in, and what its caller confirmed for it."""
    asked = f"{request['caller']} asked for {_operation(request)}, input {_json(request['input'])}"
    by = f", by {request['binding']}" if request.get("binding") else ""
    reference = f", as {request['callerRef']}" if request["callerRef"] != request["requestID"] else ""
    try:
        acts = items_of(await consumer.call(ACCOUNTS, "readAudit", {"class": "use", "limit": ACTS}))
    except (Forbidden, NotFound, Unauthenticated) as error:
        return [
            Step(at=str(request["created"]), part="door", what=f"{asked}{by}{reference}"),
            Step(at=None, part="audit", what=f"not to be read: {error.detail}"),
        ]
    origin, steps = "", []
    for act in acts:
        details = act.get("details")
        details = details if isinstance(details, dict) else {}
        if details.get("request") == request["requestID"]:
            origin = f", from {act['source']}" if act.get("source") else ""
            steps.append(Step(at=str(act["at"]), part="audit", what=f"noted as act {act['seq']}"))
        elif act["act"] == "confirmed" and _is_confirmation(act, request):
            steps.append(Step(at=str(act["at"]), part="checks", what=f"confirmed, as rule {details.get('rule')} asks"))
    if not any(step.part == "audit" for step in steps):
        steps.append(Step(at=None, part="audit", what=f"not among the latest {len(acts)} acts of its class"))
    return [Step(at=str(request["created"]), part="door", what=f"{asked}{by}{origin}{reference}"), *steps]


def _is_confirmation(act: Mapping[str, JSONValue], request: Mapping[str, JSONValue]) -> bool:
    target = f"{request['thingID']} {request['name']}"
    before = parse_time(str(request["created"])) - parse_time(str(act["at"]))
    return (act["by"], act.get("target")) == (request["caller"], target) and abs(before) < CONFIRMED_US


async def _checks(consumer: Consumer, request: Mapping[str, JSONValue]) -> list[Step]:
    """The rule that would decide now: rules are judged when a request comes, and again when it is handed over."""
    members = {
        "sender": request["caller"],
        "operation": request["operation"],
        "thing": request["thingID"],
        "name": request["name"],
        "payload": request["input"],
        "binding": request.get("binding"),
    }
    given: dict[str, JSONValue] = {name: value for name, value in members.items() if value is not None}
    who = str(request["caller"])
    try:
        found = await consumer.call(RIGHTS, "explain", given)
    except SkepError:
        who = "who asks here"  # may ask of their own rights only
        try:
            found = await consumer.call(OWN_RIGHTS, "explain", given)
        except SkepError as error:
            return [Step(at=None, part="checks", what=f"not to be asked: {error.detail}")]
    if not isinstance(found, dict):
        return []
    obligations = found.get("obligations")
    asks = isinstance(obligations, list) and CONFIRM in obligations
    said = "denied" if found.get("allowed") is not True else "allowed once confirmed" if asks else "allowed"
    return [Step(at=None, part="checks", what=f"{who} would now be {said}, by {found.get('rule')}")]


def _ledger(request: Mapping[str, JSONValue]) -> list[Step]:
    agent = TwinID.parse(str(request["thingID"])).account
    steps = []
    for number, one in enumerate(_transitions(request)):
        state, reason = str(one["state"]), one.get("reason")
        told = f"{request['caller']} is told as number {one['seq']}"
        match state:
            case State.PENDING:
                what = f"given back by agent {agent}, which went" if number else f"stored, for agent {agent}"
            case State.DELIVERED:
                what = f"agent {agent} has it"
            case State.COMPLETED if request["error"]:
                what = f"refused by the device: {request['error']}"
            case State.COMPLETED:
                what = f"done, output {_json(request['output'])}"
            case State.FAILED | State.CANCELLED:
                what = ": ".join(str(each) for each in (state, reason, request["error"]) if each)
            case _:
                what = f"agent {agent} says {state}"
        part = "delivery" if state == State.DELIVERED else "ledger"
        steps.append(Step(at=str(one["at"]), part=part, what=f"{what}; {told}"))
    return steps


async def _rows(consumer: Consumer, request: Mapping[str, JSONValue]) -> list[Step]:
    """What the Thing said from the asking to a little after the end."""
    until = rfc3339(parse_time(str(request["updated"])) + AFTERWARDS_US)
    query = [("from", str(request["created"])), ("limit", str(ROWS)), ("order", "asc")]
    if _is_final(request):
        query.append(("to", until))
    path = f"/things/{encode_segment(str(request['thingID']))}/history"
    try:
        rows = items_of(await consumer.http.json("GET", path, query=query))
    except SkepError as error:
        return [Step(at=None, part="rows", what=f"not to be read: {error.detail}")]
    return [
        Step(at=str(row["created"]), part="rows", what=f"{row['kind']} {row['name']} = {_json(row['value'])}")
        for row in rows
    ]


async def _verdict(consumer: Consumer, request: Mapping[str, JSONValue]) -> str:
    handed = f"handed over {request['attempts']} times" if request["attempts"] != 1 else "handed over once"
    if _is_final(request):
        took_ms = (parse_time(str(request["updated"])) - parse_time(str(request["created"]))) / 1_000
        end = _ENDS.get(Reason(str(request["reason"]))) if request["reason"] else None
        return f"after {took_ms:,.0f} ms, {handed}" + (f"; {end}" if end else "")
    agent = TwinID.parse(str(request["thingID"])).account
    try:
        is_online = await consumer.thing(str(request["thingID"])).read("online")
        said = f"agent {agent} is {'there' if is_online else 'not there'}"
    except SkepError:
        said = f"agent {agent}"
    clock = "deadline" if request["deadline"] else "expires"
    return f"{said}, {handed}; {clock} {request[clock]}"


# ---------------------------------------------------------------- words


def _is_final(request: Mapping[str, JSONValue]) -> bool:
    return State(str(request["state"])) in FINAL


def _transitions(request: Mapping[str, JSONValue]) -> Sequence[Mapping[str, JSONValue]]:
    found = request.get("transitions")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _operation(request: Mapping[str, JSONValue]) -> str:
    what = "action" if request["operation"] == "invoke_action" else "a write of"
    return f"{what} {request['name']} of {request['thingID']}"


def _json(value: Any) -> str:
    from pydantic_core import to_json

    text = to_json(value).decode()
    return text if len(text) <= 80 else f"{text[:79]}…"


def _clock(at: str | None) -> str:
    return "now" if at is None else at[11:23]


def _after(at: str | None, began: int) -> str:
    return "" if at is None else f"{(parse_time(at) - began) / 1_000:+,.1f} ms"
