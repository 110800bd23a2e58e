"""The callback that does nothing."""


def ignore(*_: object) -> None:
    """Do nothing: for callers that need not hear of it."""
