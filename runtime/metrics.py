"""The runtime's own counters; plain integers, since each is touched for every message."""

from collections import Counter
from dataclasses import dataclass, field

from things.delivery import State
from things.messages import Operation


@dataclass(slots=True)
class Metrics:
    """Counts since start, rendered for Prometheus by `text`."""

    handled: Counter[Operation] = field(default_factory=Counter)
    refused: Counter[tuple[Operation, str]] = field(default_factory=Counter)
    """By operation and error code."""
    sessions: Counter[str] = field(default_factory=Counter)
    """Open now, by binding."""
    requests: Counter[State] = field(default_factory=Counter)
    """Ledger transitions by state reached."""
    delivered: int = 0
    """Publications handed to sessions."""
    dropped: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Deliveries given up, by binding, kind and reason."""
    duplicates: int = 0
    lost_undurable: int = 0
    """Publications without guarantee that could not be stored."""

    def text(self) -> str:
        """Prometheus text exposition format 0.0.4."""
        lines: list[str] = []

        def family(name: str, kind: str, text: str, samples: list[tuple[str, int]]) -> None:
            lines.append(f"# HELP {name} {text}")
            lines.append(f"# TYPE {name} {kind}")
            lines.extend(f"{name}{labels} {value}" for labels, value in samples)

        family(
            "skep_messages_total",
            "counter",
            "Messages handled, by operation.",
            [(f'{{operation="{operation}"}}', count) for operation, count in sorted(self.handled.items())],
        )
        family(
            "skep_refused_total",
            "counter",
            "Messages refused, by operation and error code.",
            [(f'{{operation="{op}",code="{code}"}}', count) for (op, code), count in sorted(self.refused.items())],
        )
        family(
            "skep_sessions",
            "gauge",
            "Sessions open now, by binding.",
            [(f'{{binding="{binding}"}}', count) for binding, count in sorted(self.sessions.items())],
        )
        family(
            "skep_request_transitions_total",
            "counter",
            "Steps of actions and property writes, by state reached.",
            [(f'{{state="{state}"}}', count) for state, count in sorted(self.requests.items())],
        )
        family("skep_delivered_total", "counter", "Publications handed to sessions.", [("", self.delivered)])
        family(
            "skep_dropped_total",
            "counter",
            "Deliveries given up on their way to a client, by binding, kind and reason.",
            [
                (f'{{binding="{binding}",kind="{kind}",reason="{reason}"}}', count)
                for (binding, kind, reason), count in sorted(self.dropped.items())
            ],
        )
        family("skep_duplicates_total", "counter", "Publications recognised as repeated.", [("", self.duplicates)])
        family(
            "skep_lost_undurable_total",
            "counter",
            "Publications without guarantee that could not be stored.",
            [("", self.lost_undurable)],
        )
        return "\n".join(lines) + "\n"


def samples(*found: tuple[str, str, str, float]) -> str:
    """Metrics without labels: name, kind, text and value of each."""
    return "".join(f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {value}\n" for name, kind, text, value in found)
