"""skep for programs: everything a user of the SDK needs comes from here.

`Agent` speaks for Things, `Consumer` uses them, `Runtime` is where hyperties live; what is tested against is in
`skep.testing`, the command line in `skep.cli`. Names are imported when first used, so that the command line starts
without paho and httpx.
"""

from typing import TYPE_CHECKING

from skep.shadowing import check_packages

check_packages()

if TYPE_CHECKING:
    from skep.agent import Agent
    from skep.consumer import Change, Consumer
    from skep.handlers import ActionHandler, AgentRequest, Refused
    from skep.history import History, HistoryRow, HistoryWindow
    from skep.hyperty.observer import ObjectChange, Observer
    from skep.hyperty.reporter import Action, Reporter
    from skep.hyperty.runtime import Runtime
    from skep.mqtt_client import MQTTVersion
    from skep.outgoing import Problem
    from skep.requested import Requested, Status
    from skep.thing import Thing
    from things.delivery import Reason, State
    from things.errors import (
        AddressInUse,
        AgentFailed,
        BadAddress,
        BadCursor,
        ConfigInvalid,
        ConfirmationRequired,
        Conflict,
        Expired,
        Forbidden,
        IllegalStatus,
        Invalid,
        Locked,
        Malformed,
        NewerSchema,
        NoStub,
        NotConnected,
        NotFound,
        PreconditionFailed,
        QueueFull,
        RateLimited,
        Rejected,
        SkepError,
        StorageDamaged,
        StorageFailed,
        StorageFull,
        TDInvalid,
        TimedOut,
        TokenExpired,
        TokenInvalid,
        TooDeep,
        TooLarge,
        TooMany,
        Unauthenticated,
        Unavailable,
        UnknownAccount,
        UnknownName,
        UnknownRequest,
        UnknownThing,
    )
    from things.vocabulary import ServiceType

_NAMES = {
    "skep.agent": ("Agent",),
    "skep.consumer": ("Change", "Consumer"),
    "skep.handlers": ("ActionHandler", "AgentRequest", "Refused"),
    "skep.history": ("History", "HistoryRow", "HistoryWindow"),
    "skep.hyperty.observer": ("ObjectChange", "Observer"),
    "skep.hyperty.reporter": ("Action", "Reporter"),
    "skep.hyperty.runtime": ("Runtime",),
    "skep.mqtt_client": ("MQTTVersion",),
    "skep.outgoing": ("Problem",),
    "skep.requested": ("Requested", "Status"),
    "skep.thing": ("Thing",),
    "things.delivery": ("Reason", "State"),
    "things.errors": [
        "AddressInUse",
        "AgentFailed",
        "BadAddress",
        "BadCursor",
        "ConfigInvalid",
        "ConfirmationRequired",
        "Conflict",
        "Expired",
        "Forbidden",
        "IllegalStatus",
        "Invalid",
        "Locked",
        "Malformed",
        "NewerSchema",
        "NoStub",
        "NotConnected",
        "NotFound",
        "PreconditionFailed",
        "QueueFull",
        "RateLimited",
        "Rejected",
        "SkepError",
        "StorageDamaged",
        "StorageFailed",
        "StorageFull",
        "TDInvalid",
        "TimedOut",
        "TokenExpired",
        "TokenInvalid",
        "TooDeep",
        "TooLarge",
        "TooMany",
        "Unauthenticated",
        "Unavailable",
        "UnknownAccount",
        "UnknownName",
        "UnknownRequest",
        "UnknownThing",
    ],
    "things.vocabulary": ("ServiceType",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "Action",
    "ActionHandler",
    "AddressInUse",
    "Agent",
    "AgentFailed",
    "AgentRequest",
    "BadAddress",
    "BadCursor",
    "Change",
    "ConfigInvalid",
    "ConfirmationRequired",
    "Conflict",
    "Consumer",
    "Expired",
    "Forbidden",
    "History",
    "HistoryRow",
    "HistoryWindow",
    "IllegalStatus",
    "Invalid",
    "Locked",
    "MQTTVersion",
    "Malformed",
    "NewerSchema",
    "NoStub",
    "NotConnected",
    "NotFound",
    "ObjectChange",
    "Observer",
    "PreconditionFailed",
    "Problem",
    "QueueFull",
    "RateLimited",
    "Reason",
    "Refused",
    "Rejected",
    "Reporter",
    "Requested",
    "Runtime",
    "ServiceType",
    "SkepError",
    "State",
    "Status",
    "StorageDamaged",
    "StorageFailed",
    "StorageFull",
    "TDInvalid",
    "Thing",
    "TimedOut",
    "TokenExpired",
    "TokenInvalid",
    "TooDeep",
    "TooLarge",
    "TooMany",
    "Unauthenticated",
    "Unavailable",
    "UnknownAccount",
    "UnknownName",
    "UnknownRequest",
    "UnknownThing",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return [*__all__]
