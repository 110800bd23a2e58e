"""What is measured, in one table: every load, the figure that counts, and what is asked of the native engine."""

from dataclasses import dataclass, field

BETTER_MORE = "more"
BETTER_LESS = "less"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenario:
    """One load of the generator and the figure of it that is compared."""

    name: str
    mode: str
    figure: str
    options: dict[str, int] = field(default_factory=dict)
    better: str = BETTER_MORE
    unrelated: int = 0
    """Connections that stay open meanwhile, each with a subscription that nothing matches."""
    target: float | None = None
    """Ratio native/mosquitto that is asked for: at least if more is better, at most if less is."""
    bound: float | None = None
    """The figure itself that is asked for."""

    @property
    def asked(self) -> str:
        """What is asked for, in words."""
        sign = ">=" if self.better == BETTER_MORE else "<="
        words = [f"{self.target}x"] if self.target is not None else []
        return " ".join(f"{sign} {each}" for each in [*words, *([f"{self.bound:,.0f}"] if self.bound else [])])


SCENARIOS = (
    Scenario(name="ping-pong QoS 0", mode="pairs", figure="p50_ms", options={"n": 1, "qos": 0, "window": 1},
             better=BETTER_LESS, target=1.5),
    Scenario(name="ping-pong QoS 1", mode="pairs", figure="p50_ms", options={"n": 1, "qos": 1, "window": 1},
             better=BETTER_LESS, target=1.5),
    Scenario(name="10x10 QoS 0 window 10", mode="pairs", figure="received_per_s",
             options={"n": 10, "qos": 0, "window": 10}),
    Scenario(name="10x10 QoS 1 window 10", mode="pairs", figure="received_per_s",
             options={"n": 10, "qos": 1, "window": 10}, target=1.0),
    Scenario(name="10x10 QoS 1 window 100", mode="pairs", figure="received_per_s",
             options={"n": 10, "qos": 1, "window": 100}, target=0.6),
    Scenario(name="fan-out 1x50 QoS 0", mode="fan", figure="received_per_s",
             options={"n": 50, "qos": 0, "window": 10}, target=1.2),
    Scenario(name="fan-out 1x50 QoS 1", mode="fan", figure="received_per_s",
             options={"n": 50, "qos": 1, "window": 10}, target=1.2),
    Scenario(name="ingest 10 QoS 1 window 100", mode="ingest", figure="acknowledged_per_s",
             options={"n": 10, "qos": 1, "window": 100}),
    Scenario(name="ping-pong QoS 1 among 5 others", mode="pairs", figure="p50_ms",
             options={"n": 1, "qos": 1, "window": 1}, better=BETTER_LESS, unrelated=5),
    Scenario(name="ping-pong QoS 1 among 5,000 others", mode="pairs", figure="p50_ms",
             options={"n": 1, "qos": 1, "window": 1}, better=BETTER_LESS, unrelated=5_000),
    Scenario(name="1,000 connections", mode="storm", figure="connects_per_s", options={"n": 1_000}, bound=2_000),
    Scenario(name="5,000 connections", mode="storm", figure="connects_per_s", options={"n": 5_000}, bound=2_000),
)  # fmt: skip

IDLE = Scenario(name="KiB of an idle connection", mode="idle", figure="kib", better=BETTER_LESS, bound=4)
MANY_IDLE = Scenario(name="KiB of an idle one of 5,600", mode="idle", figure="kib", better=BETTER_LESS, bound=4)
SLOW = Scenario(name="MiB of a slow consumer", mode="slow", figure="mib", better=BETTER_LESS, bound=8)
OTHERS = Scenario(name="p99 ms beside slow consumers", mode="slow", figure="p99_ms", better=BETTER_LESS, bound=50)
