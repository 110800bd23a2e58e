"""How the runtime writes its log: a constant message with its fields, as text or as one JSON object a line."""

import json
import logging
import sys
import time

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Lines(logging.Formatter):
    """`2026-01-31T12:00:00.000Z info runtime.core message key=value …`; line breaks in values are escaped."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self._as_json:
            line = {"at": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
            return json.dumps(line | fields, default=str, ensure_ascii=False)
        shown = "".join(f" {key}={_shown(value)}" for key, value in fields.items() if key != "traceback")
        text = f"{at} {record.levelname.lower()} {record.name} {_one_line(record.getMessage())}{shown}"
        return f"{text}\n{fields['traceback']}" if "traceback" in fields else text


def configure(level: str, *, as_json: bool) -> None:
    """Send the log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(as_json=as_json))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "httpx", "amqtt", "transitions", "passlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _shown(value: object) -> str:
    text = _one_line(str(value))
    return f'"{text}"' if " " in text else text


def _one_line(text: str) -> str:
    return text.translate({code: f"\\x{code:02x}" for code in (*range(32), 0x7F, 0x85, 0x2028, 0x2029)})
