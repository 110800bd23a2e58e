"""An authorizer in a temporary folder, and principals in one word."""

from pathlib import Path

from authz.authorizer import LocalAuthorizer
from things.identity import RESERVED_ACCOUNTS, AccountType, Principal

NOON = 1_795_262_400_000_000
"""2026-11-21T12:00:00Z, a Saturday."""
HOUR = 3_600_000_000

TYPES = {
    "pump": AccountType.AGENT,
    "lamp": AccountType.AGENT,
    "rollup": AccountType.SERVICE,
    "weather": AccountType.SERVICE,
    "vera": AccountType.CONSUMER,
    "otto": AccountType.CONSUMER,
    "root": AccountType.CONSUMER,
}


def account_type(name: str) -> AccountType | None:
    return AccountType.SERVICE if name in RESERVED_ACCOUNTS else TYPES.get(name)


def authorizer(home: Path) -> LocalAuthorizer:
    return LocalAuthorizer.open(home, account_type=account_type, clock=lambda: NOON)


def who(name: str, role: str) -> Principal:
    return Principal(account=name, type=TYPES.get(name, AccountType.CONSUMER), role=role)


VERA = who("vera", "viewer")
OTTO = who("otto", "operator")
ROOT = who("root", "admin")
PUMP = who("pump", "agent")
LAMP = who("lamp", "agent")
ROLLUP = who("rollup", "service")
