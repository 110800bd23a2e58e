"""How many files and connections the process may hold open, and how they are shared out.

The soft limit is raised to the hard one at the start. Some descriptors are kept for stores, commands and child
processes; MQTT and HTTP share the rest, so that connections are refused before a store cannot open its file.
"""

import resource
from dataclasses import dataclass

RESERVED = 192
"""For stores, logs, the control socket, child processes and what they read."""
MAX_HTTP = 10_000
"""HTTP connections where descriptors are plenty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptors:
    """What the system allows, and how many connections that carries."""

    limit: int
    mqtt: int
    http: int
    wanted: int
    """MQTT connections that are configured."""

    @property
    def problem(self) -> str | None:
        """What the configuration asks for and the system does not allow."""
        if self.mqtt >= self.wanted:
            return None
        return (
            f"the system allows {self.limit} open files: {self.mqtt} MQTT and {self.http} HTTP connections, where "
            f"mqtt.max_connections is {self.wanted}; raise the limit (LimitNOFILE, ulimit -Hn) or lower the setting"
        )


def raise_limit() -> int:
    """Raise the soft limit to the hard one; the limit there is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # some systems say "unlimited" and allow less
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def shared_out(limit: int, max_mqtt: int) -> Descriptors:
    """How many connections of each kind the limit carries, a quarter of them HTTP where it is short."""
    room = max(limit - RESERVED, 8)
    http = min(MAX_HTTP, max(room - max_mqtt, room // 4))
    return Descriptors(limit=limit, mqtt=min(max_mqtt, room - http), http=http, wanted=max_mqtt)
