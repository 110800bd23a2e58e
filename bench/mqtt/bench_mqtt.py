"""Compare MQTT servers side by side with one load generator: `python -m bench.mqtt.bench_mqtt`.

Rounds are interleaved (every server in every round) and medians printed, with ratios to mosquitto: on a machine that
does other things too, trust the ratios.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

from bench.mqtt import generator
from bench.mqtt.scenarios import BETTER_MORE, IDLE_CONNECTIONS, SCENARIOS, Scenario
from bench.mqtt.servers import Server, available, running

REFERENCE = "mosquitto"
Figures = dict[str, dict[str, list[float]]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the scenarios and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", default=",".join(available()), help="names, separated by commas")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3, help="length of each load")
    parser.add_argument("--json", action="store_true", help="figures instead of a table")
    parser.add_argument("--no-idle", action="store_true", help="leave out the memory of idle connections")
    options = parser.parse_args(arguments)
    servers = options.servers.split(",")
    scenarios = [each for each in SCENARIOS if options.only in each.name]
    figures: Figures = {each.name: defaultdict(list) for each in scenarios}
    memory: dict[str, list[float]] = defaultdict(list)
    for _ in range(options.rounds):
        for scenario in scenarios:
            for server in servers:
                figures[scenario.name][server].append(measured(server, scenario, options.seconds))
        if not options.no_idle:
            for server in servers:
                memory[server].append(idle_kib(server))
    if memory:
        figures[f"KiB per idle connection of {IDLE_CONNECTIONS:,}"] = memory
    if options.json:
        print(
            json.dumps({name: {server: median(each) for server, each in row.items()} for name, row in figures.items()})
        )
    else:
        print_table(servers, scenarios, figures)


def measured(server: str, scenario: Scenario, seconds: int) -> float:
    """One load against a fresh server."""
    with running(server) as one, held(one, scenario.unrelated, {**one.options, "subscription": one.unrelated}):
        return generator.run(one.port, scenario.mode, seconds=seconds, **scenario.options, **one.options)[
            scenario.figure
        ]


@contextmanager
def held(one: Server, connections: int, options: Mapping[str, str]) -> Iterator[None]:
    """Hold connections open, each with one subscription, until the context ends."""
    if not connections:
        yield
        return
    holder = generator.held(one.port, n=connections, seconds=120, **options)
    try:
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise RuntimeError("the connections did not come up")
        yield
    finally:
        holder.terminate()
        holder.wait()


def idle_kib(server: str) -> float:
    """What one idle connection costs in resident memory."""
    with running(server) as one:
        generator.run(one.port, "storm", n=50, **one.options)
        before = one.rss
        with held(one, IDLE_CONNECTIONS, one.options):
            return (one.rss - before) / 1024 / IDLE_CONNECTIONS


def print_table(servers: Sequence[str], scenarios: Sequence[Scenario], figures: Figures) -> None:
    """Medians, and ratios to the reference where it ran."""
    targets = {each.name: each for each in scenarios}
    width = max(len(name) for name in figures) + 2
    print("".join([f"{'':{width}}", *(f"{server:>28}" for server in servers), f"{'asked':>10}"]))
    for name, row in figures.items():
        medians = {server: median(row[server]) for server in servers}
        cells = []
        for server in servers:
            text = f"{medians[server]:,.0f}" if medians[server] >= 100 else f"{medians[server]:.3f}"
            if REFERENCE in medians and server != REFERENCE and medians[REFERENCE]:
                text += f" ({medians[server] / medians[REFERENCE]:.2f}x)"
            cells.append(f"{text:>28}")
        scenario = targets.get(name)
        asked = ""
        if scenario is not None and scenario.target is not None:
            asked = f"{'>=' if scenario.better == BETTER_MORE else '<='} {scenario.target}x"
        print("".join([f"{name:{width}}", *cells, f"{asked:>10}"]))


if __name__ == "__main__":
    main()
