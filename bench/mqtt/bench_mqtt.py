"""Compare MQTT servers side by side with one load generator: `python -m bench.mqtt.bench_mqtt`.

Rounds are interleaved (every server in every round) and medians printed, with ratios to mosquitto: on a machine that
does other things too, trust the ratios. `--processor` prints the processor time a server spends on each message (or
connection) instead, which other programs disturb least.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from bench.mqtt import generator
from bench.mqtt.memory import IDLE_CONNECTIONS, MANY_IDLE_CONNECTIONS, held, idle_kib, slow_consumer
from bench.mqtt.scenarios import IDLE, MANY_IDLE, OTHERS, SCENARIOS, SLOW, Scenario
from bench.mqtt.servers import available, running

REFERENCE = "mosquitto"
WARM_UP_S = 1
"""What the generator sends before it measures."""

Figures = dict[Scenario, dict[str, list[float]]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the scenarios and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", default=",".join(available()), help="names, separated by commas")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=2, help="length of each load")
    parser.add_argument("--json", action="store_true", help="figures instead of a table")
    parser.add_argument("--no-memory", action="store_true", help="leave out what idle and slow connections cost")
    parser.add_argument("--processor", action="store_true", help="µs of the server's processor time for each message")
    options = parser.parse_args(arguments)
    servers = options.servers.split(",")
    figures: Figures = defaultdict(lambda: defaultdict(list))
    for _ in range(options.rounds):
        for scenario in SCENARIOS:
            if options.only in scenario.name:
                for server in servers:
                    figure, processor_us = measured(server, scenario, options.seconds)
                    figures[scenario][server].append(processor_us if options.processor else figure)
        has_memory = any(options.only in each.name for each in (IDLE, MANY_IDLE, SLOW, OTHERS))
        if has_memory and not (options.no_memory or options.processor):
            for server in servers:
                figures[IDLE][server].append(idle_kib(server, IDLE_CONNECTIONS))
                figures[MANY_IDLE][server].append(idle_kib(server, MANY_IDLE_CONNECTIONS))
                mib, p99_ms = slow_consumer(server, options.seconds)
                figures[SLOW][server].append(mib)
                figures[OTHERS][server].append(p99_ms)
    if options.json:
        found = {
            scenario.name: {server: median(each) for server, each in row.items()} for scenario, row in figures.items()
        }
        print(json.dumps(found))
    else:
        print_table(servers, figures, is_processor=options.processor)


def measured(server: str, scenario: Scenario, seconds: int) -> tuple[float, float]:
    """One load against a fresh server: the figure, and µs of the server's processor time for each message."""
    with running(server) as one, held(one, scenario.unrelated, {**one.options, "subscription": one.unrelated}):
        before = one.processor_s
        found = generator.run(one.port, scenario.mode, seconds=seconds, **scenario.options, **one.options)
        return found[scenario.figure], (one.processor_s - before) / _messages(found, seconds) * 1e6


def _messages(found: Mapping[str, float], seconds: int) -> float:
    """Connections that were made, or messages that were received (acknowledged, where nobody receives)."""
    if connects := found.get("connects"):
        return connects
    return (found["received_per_s"] or found["acknowledged_per_s"]) * (seconds + WARM_UP_S)


def print_table(servers: Sequence[str], figures: Figures, *, is_processor: bool) -> None:
    """Medians, and ratios to the reference where it ran."""
    width = max(len(scenario.name) for scenario in figures) + 2
    print("".join([f"{'':{width}}", *(f"{server:>28}" for server in servers), f"{'asked':>18}"]))
    for scenario, row in figures.items():
        medians = {server: median(row[server]) for server in servers}
        cells = []
        for server in servers:
            text = f"{medians[server]:,.0f}" if medians[server] >= 100 else f"{medians[server]:.3f}"
            if server != REFERENCE and medians.get(REFERENCE):
                text += f" ({medians[server] / medians[REFERENCE]:.2f}x)"
            cells.append(f"{text:>28}")
        asked = "" if is_processor else scenario.asked
        print("".join([f"{scenario.name:{width}}", *cells, f"{asked:>18}"]))


if __name__ == "__main__":
    main()
