"""What a runtime must never say while it is fed with anything at all: a traceback, or that something failed inside."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def without_tracebacks() -> Iterator[None]:
    """Fails if anything is logged with a traceback, or as an error, while the block runs."""
    said = list[logging.LogRecord]()

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info or record.levelno >= logging.ERROR:
                said.append(record)

    handler = Listening()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
    assert not said, "\n".join(logging.Formatter().format(one) for one in said[:5])


def resident_bytes() -> int:
    """Of this process, now."""
    found: int = psutil.Process().memory_info().rss
    return found
