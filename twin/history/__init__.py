"""Hot history: every event and property value, in append-only files by day received."""

from twin.history.store import HistoryStore, open_history

__all__ = ["HistoryStore", "open_history"]
