"""`skep doctor --url`: what keeps a client on another machine from a gateway, named with what mends it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from skep.cli import main
from tests.pairs import make_pair, own_files
from tests.support import PUMP, Skep, skep

pytestmark = pytest.mark.anyio


class Looked(dict[str, str]):
    """What is bad, by check."""

    seen: dict[str, str]


@pytest.fixture(autouse=True)
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without logins of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("SKEP_HOME", "SKEP_URL", "SKEP_TOKEN", "SKEP_CA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def look(capsys: pytest.CaptureFixture[str]) -> Any:
    async def looked(url: str, *options: str) -> Looked:
        capsys.readouterr()
        code = await anyio.to_thread.run_sync(main, ["doctor", "--json", "--url", url, *options])
        said = json.loads(capsys.readouterr().out)
        found = Looked({one["check"]: one["detail"] for one in said if not one["ok"]})
        found.seen = {one["check"]: one["detail"] for one in said}
        assert code == (1 if found else 0)
        return found

    return looked


async def _thing(runtime: Skep, token: str, host: str) -> None:
    """An entry of the directory that lives elsewhere."""
    td = {
        **PUMP,
        "id": "urn:elsewhere",
        "securityDefinitions": {"none": {"scheme": "nosec"}},
        "security": "none",
        "properties": {"flow": {"type": "number", "forms": [{"href": f"https://{host}/flow"}]}},
        "events": {},
        "actions": {},
    }
    async with httpx2.AsyncClient(base_url=runtime.http, headers={"authorization": f"Bearer {token}"}) as client:
        content = {"content-type": "application/td+json"}
        (await client.put("/things/urn:elsewhere", content=json.dumps(td), headers=content)).raise_for_status()


async def test_a_gateway_that_is_well_has_nothing_bad(tmp_path: Path, look: Any) -> None:
    async with skep(tmp_path, tls=True) as runtime:
        ann = await runtime.add("ann", role="admin")

        found = await look(runtime.https, "--ca", str(runtime.ca), "--token", ann.token)
        anybody = await look(runtime.https, "--ca", str(runtime.ca))

    assert found == {}
    assert [*found.seen] == ["name", "https", "certificate", "health", "clock", "names", "login", "forms", "mqtt"]
    assert str(runtime.running.mqtts) in found.seen["mqtt"]
    assert anybody == {}
    assert f"skep login {runtime.https}" in anybody.seen["login"]


async def test_a_certificate_that_is_not_believed_is_explained(tmp_path: Path, look: Any) -> None:
    files = own_files(tmp_path / "own")
    own = {"certificate": str(files.certificate), "certificate_key": str(files.key)}
    make_pair(files, names=["gw.example"])
    async with skep(tmp_path / "home", tls=True, security=own) as runtime:
        ann = await runtime.add("ann", role="admin")
        unknown = await look(runtime.https, "--token", ann.token)
        other = await look(runtime.https, "--ca", str(runtime.ca))
        misnamed = await look(runtime.https, "--ca", str(files.certificate))
    make_pair(files, days=-1)
    async with skep(tmp_path / "home", tls=True, security=own) as runtime:
        ended = await look(runtime.https, "--ca", str(files.certificate))

    assert [*unknown.seen] == ["name", "https", "certificate"], "nothing is sent to whom is not believed"
    assert "skep login" in unknown["certificate"]
    assert f"{runtime.ca} is not of the authority" in other["certificate"]
    assert "it is for gw.example, not for 127.0.0.1" in misnamed["certificate"]
    assert "it ended on" in ended["certificate"]


async def test_forms_that_lead_nowhere_and_a_token_that_is_not_taken_are_named(tmp_path: Path, look: Any) -> None:
    async with skep(tmp_path, tls=True) as runtime:
        ann = await runtime.add("ann", role="admin")
        await _thing(runtime, ann.token, "pump.invalid:8443")

        found = await look(runtime.https, "--ca", str(runtime.ca), "--token", ann.token)
        refused = await look(runtime.https, "--ca", str(runtime.ca), "--token", "nonsense")

    assert [*found] == ["forms"]
    assert "https://pump.invalid:8443" in found["forms"]
    assert "urn:elsewhere" in found["forms"]
    assert [*refused] == ["login"]


class _OtherServer(BaseHTTPRequestHandler):
    """A gateway an hour ahead that knows itself by another name; and, below `/other`, something else."""

    def do_GET(self) -> None:
        body: object = {
            "/readyz": {"ready": False, "reasons": {"space": "no space left for data"}},
            "/.well-known/wot": {"properties": {"all": {"forms": [{"href": "https://192.0.2.9:8443/things{?limit}"}]}}},
        }.get(self.path, "hello")
        content = json.dumps(body).encode()
        self.send_response_only(200)
        self.send_header("Date", format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def _other() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _OtherServer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_health_clock_and_names_of_a_gateway_are_judged(look: Any) -> None:
    with _other() as url:
        found = await look(url)
        elsewhere = await look(f"{url}/other")
        no_tls = await look(url.replace("http:", "https:"))

    assert found["health"] == "space: no space left for data"
    assert "s ahead of this machine's" in found["clock"]
    assert "sends clients to https://192.0.2.9:8443" in found["names"]
    assert "and not by skep" in elsewhere["health"]
    assert "no TLS is spoken there" in no_tls["certificate"]


@pytest.mark.parametrize(
    ("url", "check", "said"),
    [
        ("https://127.0.0.1:1", "https", "nothing listens there"),
        ("https://gateway.invalid", "name", "gateway.invalid"),  # unknown, or no name service answers
    ],
)
async def test_what_is_not_found_is_said(look: Any, url: str, check: str, said: str) -> None:
    assert said in (await look(url))[check]


def test_what_is_no_address_is_refused() -> None:
    assert main(["doctor", "--url", "gateway.local"]) == 7
