"""`skep ready` says by its exit code whether a runtime serves."""

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from threading import Thread

import pytest

from skep.cli import main
from tests.skep.runtimes import process


def _ready(home: Path) -> int:
    return main(["ready", "--home", str(home)])


def test_runtime_that_serves_is_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with process(tmp_path / "home"):
        assert _ready(tmp_path / "home") == 0
        assert capsys.readouterr().out.startswith("ready\n")
    assert _ready(tmp_path / "home") == 6
    assert "no runtime answers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ({"ready": False, "reasons": {"storage": "full"}}, 6, "storage: full"),
        ({"ready": True, "reasons": {}, "warnings": {"clock": "behind \x1b[2J"}}, 0, "clock: behind \\x1b[2J"),
    ],
)
def test_reasons_and_warnings_are_told(
    answer: Mapping[str, object], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def address_string(self) -> str:
            return "control"

        def log_message(self, *_: object) -> None:
            pass

    with UnixStreamServer(str(tmp_path / "control.sock"), Answering) as server:
        Thread(target=server.handle_request, daemon=True).start()
        assert _ready(tmp_path) == code
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
