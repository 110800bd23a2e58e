"""Bounds of one socket."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WebThingLimits:
    """What one client may cost."""

    max_message_bytes: int = 262_144
    max_under_way: int = 100
    """Messages that are worked on at the same time; more are not read yet."""
    max_owed: int = 1_000
    """Answers, requests and statuses that wait to be written."""
    max_notifications: int = 1_000
    max_queued_bytes: int = 4_194_304
    default_wait_s: float = 5.0
    """How long a property write waits for its final status before it is answered."""
    max_wait_s: float = 60.0
    max_followed: int = 1_000
    """Invocations of one socket whose progress is told, oldest forgotten first."""
