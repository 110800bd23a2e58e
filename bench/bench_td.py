"""What Thing Descriptions cost: reading and checking one, checking values, deriving a twin's, filtering, and memory.

    python bench/bench_td.py

Prints one line a figure; times are the best of several rounds, so that a busy machine disturbs them least.
"""

import gc
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from time import perf_counter

from things.addresses import Kind, TwinID
from things.filters import Field, matches, parse_filter
from things.messages import JSONValue, Operation
from things.td import ThingDescription
from things.td_rules import problems_of
from things.twin_td import Forms, TwinSecurity, twin_td

THINGS = 10_000


def best_us(action: Callable[[], object], *, calls: int, rounds: int = 7) -> float:
    """µs a call, in the best of `rounds`."""
    best = float("inf")
    for _ in range(rounds):
        started = perf_counter()
        for _ in range(calls):
            action()
        best = min(best, (perf_counter() - started) / calls)
    return best * 1e6


def resident_kib() -> int:
    """Memory of this process, from the kernel."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def forms(td: ThingDescription, twin: TwinID) -> Forms:
    """Forms of the size that bindings give."""
    root = f"https://gateway.example:8443/things/{twin}"
    result: dict[tuple[str, str], list[dict[str, JSONValue]]] = {}
    for kind, names, op in (
        ("property", td.properties, ["readproperty", "writeproperty", "observeproperty"]),
        ("action", td.actions, ["invokeaction"]),
        ("event", td.events, ["subscribeevent", "unsubscribeevent"]),
    ):
        for name in names:
            result[kind, name] = [{"href": f"{root}/{kind}/{name}", "op": list[JSONValue](op)}]
    return result


def everything(_kind: Kind, _name: str, _operation: Operation) -> bool:
    return True


def main() -> None:
    text = files("things").joinpath("samples", "pump.td.json").read_bytes()
    document = json.loads(text)
    td = ThingDescription.parse(text)
    security = TwinSecurity(definitions={"bearer": {"scheme": "bearer"}}, names=["bearer"])
    twin = TwinID.of("plant", "pump-1")
    tree = parse_filter("online and flow > 30 or title ~ 'boiler'")
    values: dict[Field, JSONValue] = {}

    print(f"TD of {len(text)} bytes")
    print(f"rules alone               {best_us(lambda: problems_of(document), calls=200):9.1f} µs  (bound 1000)")
    print(f"parse and check           {best_us(lambda: ThingDescription.parse(text), calls=200):9.1f} µs  (bound 1000)")
    print(
        f"check a scalar value      {best_us(lambda: td.check_property('flow', 12.5), calls=20_000):9.2f} µs  (bound 5)"
    )
    rinse: JSONValue = {"seconds": 20, "note": "weekly"}
    print(f"check an action's input   {best_us(lambda: td.check_action_input('rinse', rinse), calls=20_000):9.2f} µs")
    derive = best_us(
        lambda: twin_td(
            td, twin, {"https": forms}, security, allowed=everything, online=True, last_seen=0, http_base="https://x"
        ),
        calls=200,
    )
    print(f"derive a twin TD          {derive:9.1f} µs")
    print(f"evaluate a filter         {best_us(lambda: matches(tree, values.get), calls=20_000):9.2f} µs")

    texts = [text.replace(b"Boiler room pump", b"Boiler room pump %d" % number) for number in range(THINGS)]
    gc.collect()
    before = resident_kib()
    held = [ThingDescription.parse(one) for one in texts]
    gc.collect()
    grown = resident_kib() - before
    print(f"memory a TD, as read      {grown / THINGS:9.2f} KiB beyond its text  (bound 6)")
    for one in held:
        one.check_property("flow", 1.0)
    gc.collect()
    grown = resident_kib() - before
    print(f"memory a TD, all in use   {grown / THINGS:9.2f} KiB beyond its text  (bound 6)")


if __name__ == "__main__":
    main()
