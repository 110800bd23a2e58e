"""The contracts between the runtime and the folders around it; satisfied by shape, read first.

`handling`: what a message passes through. `clients`: what a protocol binding is given (Sink, Sessions) and gives
(Session, ProtocolBinding). `rights` and `stores`: what the runtime is given to decide with and to keep things in.
Everything without `async` runs in the event loop and does not block. Times are µs UTC.
"""

from runtime.ports.clients import (
    BatchResult,
    Missed,
    Pattern,
    ProtocolBinding,
    Publication,
    Rejection,
    Request,
    Session,
    Sessions,
    Sink,
    StoredPublication,
)
from runtime.ports.handling import Check, Clock, Handler, Service, Test
from runtime.ports.patterns import ByPattern
from runtime.ports.rights import Audit, Authenticator, Authorizer
from runtime.ports.stores import Directory, History, Ledger, ValueStore
from things.records import (
    Appended,
    DirectoryChange,
    Entry,
    HistoryQuery,
    LedgerQuery,
    LedgerRow,
    Reading,
    Row,
    Transition,
    Value,
)

# The stores' records live in `things`, which the twin may import; they are part of these contracts all the same.
__all__ = [
    "Appended",
    "Audit",
    "Authenticator",
    "Authorizer",
    "BatchResult",
    "ByPattern",
    "Check",
    "Clock",
    "Directory",
    "DirectoryChange",
    "Entry",
    "Handler",
    "History",
    "HistoryQuery",
    "Ledger",
    "LedgerQuery",
    "LedgerRow",
    "Missed",
    "Pattern",
    "ProtocolBinding",
    "Publication",
    "Reading",
    "Rejection",
    "Request",
    "Row",
    "Service",
    "Session",
    "Sessions",
    "Sink",
    "StoredPublication",
    "Test",
    "Transition",
    "Value",
    "ValueStore",
]
