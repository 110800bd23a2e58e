"""Every method of every built-in service, called with anything at all by every role: refused, never failed."""

import gc
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runtime.ports import Service
from tests.bindings.http.support import House, lamp_house
from tests.faults import resident_bytes, without_tracebacks
from things.errors import SkepError
from things.identity import AccountType, Principal, Role
from things.messages import Origin

pytestmark = pytest.mark.anyio

CALLS = 2_000
LONG_CALLS = int(os.environ.get("SKEP_TRIAL_FUZZ", "20000"))
GROWTH_BYTES = 32 << 20
"""What the calls that succeed leave in caches and in the log may take."""
MOST_S = 20.0
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**40, 0.5, 1e308, -0.0),
    *(
        "",
        " ",
        "\0",
        "x",
        "x" * 600,
        "ü",
        "\ud7ff\U0010ffff",
        "..",
        "*",
        "1970-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
    ),
    *(
        "0001-01-01T00:00:00+14:00",
        "dtw:lights:lamp",
        "dtw:lights:",
        "lights",
        "viewer1",
        "admin",
        "nobody",
        "level",
        "5m",
    ),
    *("-1", "9" * 40, "flow > 3", "((((", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "0" * 36),
    *(
        [],
        [None],
        [{}],
        [{}, {}],
        [[]],
        ["lights"],
        [2**63],
        {},
        {"a": None},
        {"": {}},
        {"days": 2**63},
        {"@context": 1},
    ),
]
X25519 = (
    "-----BEGIN PUBLIC KEY-----\n"
    "MCowBQYDK2VuAyEAhSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=\n"
    "-----END PUBLIC KEY-----\n"
)
SPARED = frozenset({("dtw:authn:admin", "rotateKeys")})
"""What would end the accounts of the test, or takes seconds by its nature."""


def _principals() -> list[Principal]:
    roles = (Role.NONE, Role.VIEWER, Role.OPERATOR, Role.MANAGER, Role.ADMIN)
    consumers = [Principal(account=f"{role.value}1", type=AccountType.CONSUMER, role=role) for role in roles]
    agent = Principal(account="lights", type=AccountType.AGENT, role=Role.AGENT)
    return [
        *consumers,
        consumers[-1],
        consumers[-1],
        agent,
        Principal(account="jobs", type=AccountType.SERVICE, role=Role.SERVICE),
    ]


def _input(chance: random.Random, service: Service, method: str) -> Any:
    schema = service.td["actions"][method].get("input", {})
    if chance.random() < 0.05:
        return chance.choice(ODD)
    members: dict[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    odd = chance.choice([*members, None])
    given = {}
    for name, definition in members.items():
        if name == odd or (name not in required and chance.random() < 0.7):
            continue
        given[name] = _fitting(chance, definition)
    if odd is not None:
        given[odd] = chance.choice(ODD)
    return given


def _fitting(chance: random.Random, definition: Any) -> Any:
    """A value of the right type, as far as that is easily seen; large where it may be."""
    if not isinstance(definition, dict):
        return chance.choice(ODD)
    if "enum" in definition:
        return chance.choice(definition["enum"])
    match definition.get("type"):
        case "integer" | "number":
            return chance.choice(
                [definition.get("minimum", 0), definition.get("maximum", 2**63), 0, 1, 10, 2**63, 10**40]
            )
        case "boolean":
            return chance.random() < 0.5
        case "array":
            return [_fitting(chance, definition.get("items")) for _ in range(chance.randrange(3))]
        case "object":
            return chance.choice([one for one in ODD if isinstance(one, dict)])
        case "string":
            return chance.choice([one for one in ODD if isinstance(one, str)])
        case _:
            return chance.choice(ODD)


@pytest.mark.timeout(240)
async def test_no_call_of_a_service_fails_inside(tmp_path: Path) -> None:
    await fuzzed(tmp_path, CALLS, MOST_S, seed=14)


@pytest.mark.trial
@pytest.mark.timeout(3_600)
async def test_no_call_of_a_service_fails_inside_for_long(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    grown = await fuzzed(tmp_path, LONG_CALLS, 1_800.0, seed=seed)

    print(f"seed {seed}: {grown / 2**20:.1f} MiB more after {LONG_CALLS} calls than after a quarter of them")
    assert grown < GROWTH_BYTES


async def fuzzed(home: Path, count: int, most_s: float, *, seed: int) -> int:
    """Call; by how many bytes the process grew over the last three quarters. No method takes more than its part of
    `most_s`."""
    chance, failed, seen = random.Random(seed), Counter[str](), Counter[str]()
    settled = 0
    with without_tracebacks():
        async with lamp_house(home / "home") as house:
            calls = [
                (service, method)
                for service in house.runtime.services
                for method in service.td["actions"]
                if (service.thing_id, method) not in SPARED
            ]
            slow = Counter[tuple[str, str]]()
            for number in range(count):
                if number == count // 4:
                    gc.collect()
                    settled = resident_bytes()
                service, method = calls[number % len(calls)]
                if slow[service.thing_id, method] > most_s / len(calls):
                    continue
                given = _input(chance, service, method)
                begun = time.perf_counter()
                outcome = await _called(house, chance.choice(_principals()), service.thing_id, method, given)
                slow[service.thing_id, method] += time.perf_counter() - begun  # type: ignore[assignment]
                seen[outcome.partition(" ")[0]] += 1
                if outcome.startswith("!"):
                    failed[f"{outcome} at {service.thing_id} {method} {str(given)[:200]}"] += 1
            gc.collect()
            grown = resident_bytes() - settled

    assert not failed, "\n".join(failed)
    assert seen["done"] > 100
    assert seen["invalid"] > 100
    return grown


@pytest.mark.parametrize(
    ("service", "method", "given"),
    [
        ("dtw:skep:requests", "readInbox", {"after": 2**63}),
        ("dtw:skep:requests", "readInbox", {"after": -1}),
        ("dtw:skep:requests", "listRequests", {"limit": 0}),
        ("dtw:skep:requests", "listRequests", {"limit": 2**63}),
        ("dtw:authn:admin", "issueCertificate", {"clientID": "viewer1", "publicKey": "no key"}),
        ("dtw:authn:admin", "issueCertificate", {"clientID": "viewer1", "publicKey": X25519}),
        ("dtw:history:lake", "retain", {"rules": [{}, {}]}),
        ("dtw:history:readings", "readHistory", {"things": ["dtw:lights:lamp"], "afterRow": 2**63}),
        ("dtw:directory:things", "listTDs", {"offset": 2**63}),
        ("dtw:directory:things", "listChanges", {"after": 2**63}),
    ],
)
async def test_what_no_database_and_no_authority_can_take_is_invalid(
    tmp_path: Path, service: str, method: str, given: Any
) -> None:
    async with lamp_house(tmp_path / "home") as house:
        admin = Principal(account="admin1", type=AccountType.CONSUMER, role=Role.ADMIN)
        assert await _called(house, admin, service, method, given) == "invalid"


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/inbox?after=9223372036854775808", {}),
        ("GET", "/inbox", {"last-event-id": "9223372036854775808"}),
        ("GET", "/stream?thing=dtw:lights:lamp", {"last-event-id": "9223372036854775808"}),
        ("GET", "/events", {"last-event-id": "9223372036854775808"}),
        ("GET", "/history?after=9223372036854775808", {}),
        ("GET", "/things?offset=9223372036854775808", {}),
        ("POST", "/rpc/dtw:history:lake/retain", {}),
    ],
)
async def test_numbers_beyond_64_bits_are_refused_over_http(
    tmp_path: Path, method: str, path: str, headers: dict[str, str]
) -> None:
    async with lamp_house(tmp_path / "home") as house, house.client("admin1") as admin:
        body: Any = {"rules": [{}, {}]} if method == "POST" else None
        reply = await admin.request(method, path, headers=headers, json=body)

    assert (reply.status_code, reply.json()["code"]) == (400, "invalid")


async def _called(house: House, principal: Principal, thing_id: str, method: str, given: Any) -> str:
    try:
        await house.runtime.call(principal, thing_id, method, given, Origin(binding="http", source="127.0.0.1"))
    except SkepError as error:
        return f"!internal {error!r}" if error.code == "internal" else error.code
    except Exception as error:
        return f"!{type(error).__name__} {error}"
    return "done"
