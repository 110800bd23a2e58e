"""Requests and their transitions: every action and property write with its whole life."""

from twin.ledger.store import LedgerStore

__all__ = ["LedgerStore"]
