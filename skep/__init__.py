"""skep for programs: `Agent` speaks for Things, `Consumer` uses them; the command line is in `skep.cli`.

Names are imported when first used, so that the command line starts without paho and httpx.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skep.agent import Agent
    from skep.consumer import Change, Consumer
    from skep.handling import AgentRequest, Refused
    from skep.outgoing import Problem
    from skep.requested import Requested, Status
    from skep.thing import Thing

__all__ = ["Agent", "AgentRequest", "Change", "Consumer", "Problem", "Refused", "Requested", "Status", "Thing"]

_HOMES = {
    "Agent": "skep.agent",
    "Problem": "skep.outgoing",
    "Change": "skep.consumer",
    "Consumer": "skep.consumer",
    "Requested": "skep.requested",
    "Status": "skep.requested",
    "AgentRequest": "skep.handling",
    "Refused": "skep.handling",
    "Thing": "skep.thing",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
