"""What the core reports of requests, calls and confirmations, written to the audit log."""

from dataclasses import dataclass

from authn.audit import Audit as AuditLog
from runtime.ports import LedgerRow
from things.messages import Message, Operation


@dataclass(frozen=True, slots=True)
class MessageAudit:
    """Satisfies `runtime.ports.Audit`."""

    log: AuditLog

    def requested(self, row: LedgerRow, message: Message) -> None:
        act = "action" if row.operation is Operation.INVOKE_ACTION else "write"
        target, details = f"{row.thing_id} {row.name}", {"request": row.request_id, "binding": message.origin.binding}
        self.log.record(act, by=row.caller, target=target, source=message.origin.source, details=details)

    def called(self, message: Message) -> None:
        target = f"{message.thing_id} {message.name}"
        self.log.record("call", by=message.sender_id, target=target, source=message.origin.source)

    def confirmed(self, message: Message, rule: str) -> None:
        self.log.record(
            "confirmed",
            by=message.sender_id,
            target=f"{message.thing_id} {message.name}".strip(),
            source=message.origin.source,
            details={"operation": message.operation, "rule": rule},
        )
