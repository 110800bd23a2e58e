"""What a decision and a token check cost, against a bare dictionary look-up: `python -m bench.bench_authz`.

The reference looks up the same key, built the same way, and does nothing else. Rounds are interleaved, medians taken.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from authn.authenticator import LocalAuthenticator
from authz.authorizer import LocalAuthorizer
from authz.policy.sets import set_document
from things.addresses import Address, Kind
from things.decisions import Context
from things.identity import AccountType, Principal, Role
from things.messages import Operation

TARGET_US = 2.0
VIEWER = Principal(account="vera", type=AccountType.CONSUMER, role=Role.VIEWER)
SPEED = Address("dtw:pump:1", Kind.PROPERTY, "speed")
NIGHT = {
    "id": "night",
    "policies": [
        {"id": "p", "rules": [{"id": "r", "effect": "block", "condition": {"time": {"between": ["22:00", "06:00"]}}}]}
    ],
}


def per_call_us(call: Callable[[], object], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count * 1e6


async def measured(home: Path, *, count: int, rounds: int) -> dict[str, float]:
    clock = lambda: time.time_ns() // 1_000  # noqa: E731 -- one expression, used once
    rights = LocalAuthorizer.open(home, account_type=lambda _: AccountType.AGENT, clock=clock)
    authenticator = LocalAuthenticator.open(home, clock=clock)
    try:
        _, token = await authenticator.administration.add("pump", AccountType.AGENT, by="bench")
        assert token is not None

        def decided_anew() -> None:
            rights.forget()
            rights.decide(VIEWER, Operation.READ, SPEED)

        def verified_anew() -> None:
            authenticator._verified.clear()
            authenticator.verify(token)

        lookup = {(VIEWER.account, VIEWER.role, VIEWER.type, Operation.READ, SPEED): True}
        plain: dict[str, Callable[[], object]] = {
            "dictionary look-up of the same key": lambda: lookup.get(
                (VIEWER.account, VIEWER.role, VIEWER.type, Operation.READ, SPEED)
            ),
            "decision, remembered": lambda: rights.decide(VIEWER, Operation.READ, SPEED),
            "token, remembered": lambda: authenticator.verify(token),
        }
        rare: dict[str, Callable[[], object]] = {
            "decision, first time": decided_anew,
            "token, first time": verified_anew,
        }
        figures: dict[str, list[float]] = {name: [] for name in (*plain, *rare)}
        for _ in range(rounds):
            for name, call in plain.items():
                figures[name].append(per_call_us(call, count))
            for name, call in rare.items():
                figures[name].append(per_call_us(call, max(1, count // 100)))
        await rights.put_policy_set(set_document(NIGHT))
        context = Context(now=12 * 3_600_000_000)
        conditional = [
            per_call_us(lambda: rights.decide(VIEWER, Operation.READ, SPEED, context), count // 10)
            for _ in range(rounds)
        ]
        return {name: median(values) for name, values in figures.items()} | {
            "decision, on a condition": median(conditional)
        }
    finally:
        authenticator.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measured(Path(folder), count=options.count, rounds=options.rounds))
    if options.json:
        print(json.dumps(figures))
        return
    reference = figures["dictionary look-up of the same key"]
    for name, us in figures.items():
        target = f" (< {TARGET_US:.0f} µs)" if name == "decision, remembered" else ""
        print(f"{name:36} {us:8.2f} µs  ratio {us / reference:8.1f}{target}")


if __name__ == "__main__":
    main()
