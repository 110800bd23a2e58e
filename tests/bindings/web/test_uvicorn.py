"""The parts of uvicorn that `bindings/web` uses and no document promises: another version may lack any of them."""

import inspect
import re
from importlib.metadata import version
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

ROOT = Path(__file__).parents[3]

OVERRIDDEN = {
    HttpToolsProtocol: {
        "connection_made": "transport",
        "connection_lost": "exc",
        "data_received": "data",
        "on_message_begin": "",
        "on_header": "name value",
        "on_body": "body",
        "on_headers_complete": "",
        "on_message_complete": "",
        "on_response_complete": "",
        "_should_upgrade": "",
        "pause_writing": "",
        "resume_writing": "",
        "handle_websocket_upgrade": "",
        "send_400_response": "msg",
    },
    FlowControl: {"resume_reading": ""},
    WebSocketsSansIOProtocol: {"connection_lost": "exc", "keepalive_timeout": ""},
}
"""Methods that are extended or replaced, with their parameters."""
CALLED = {
    HttpToolsProtocol: {"_start_asgi_task": "cycle app", "timeout_keep_alive_handler": ""},
    WebSocketsSansIOProtocol: {"schedule_ping": ""},
    uvicorn.Server: {"startup": "sockets", "main_loop": "", "shutdown": "sockets"},
}
KEPT = {
    HttpToolsProtocol: (
        *("app_state", "client", "cycle", "flow", "headers", "loop", "parser", "pipeline", "scope", "server_state"),
        *("timeout_keep_alive", "transport", "url"),
    ),
    FlowControl: ("_transport", "read_paused"),
    RequestResponseCycle: ("response_complete",),
    uvicorn.Server: ("servers", "server_state"),
    ServerState: ("connections", "tasks"),
    WebSocketsSansIOProtocol: (
        *("client", "initial_response", "logger", "pending_ping_payload", "pong_timer", "read_paused", "transport"),
        "writable",
    ),
}
"""Members of the objects, as their own methods spell them."""


def test_the_version_that_is_installed_is_the_one_that_is_named() -> None:
    named = re.search(r'"uvicorn==([0-9.]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))

    assert named is not None
    assert version("uvicorn") == named[1]


def test_every_method_that_is_extended_or_called_has_the_parameters_that_are_counted_on() -> None:
    found = {
        f"{kind.__name__}.{name}": " ".join(list(inspect.signature(getattr(kind, name)).parameters)[1:])
        for table in (OVERRIDDEN, CALLED)
        for kind, methods in table.items()
        for name in methods
    }
    wanted = {
        f"{kind.__name__}.{name}": parameters
        for table in (OVERRIDDEN, CALLED)
        for kind, methods in table.items()
        for name, parameters in methods.items()
    }

    assert found == wanted


def test_every_member_that_is_read_or_set_is_kept() -> None:
    lacking = [
        f"{kind.__name__}.{name}"
        for kind, names in KEPT.items()
        for name in names
        if f"self.{name} " not in inspect.getsource(kind) and f"self.{name}:" not in inspect.getsource(kind)
    ]

    assert not lacking
    assert STATUS_LINE[400] == b"HTTP/1.1 400 Bad Request\r\n"


def test_only_these_modules_reach_into_uvicorn() -> None:
    reaching = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "bindings").rglob("*.py")
        if re.search(r"^(from|import) uvicorn\.", path.read_text("utf-8"), re.MULTILINE)
    }

    assert reaching == {f"bindings/web/{name}.py" for name in ("connections", "intake", "upgraded")}
