"""`skep login`: a laptop that trusts one gateway, stays logged in, and is let go."""

import io
import json
import socket
import ssl
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from skep import logins
from skep.cli import main
from tests.skep.runtimes import process

PASSWORD = "a long pass phrase of hers"


@dataclass(frozen=True, slots=True)
class Gateway:
    url: str
    code: str
    fingerprint: str


@contextmanager
def _unclaimed(home: Path) -> Iterator[Gateway]:
    """A gateway that nobody has claimed, as somebody far away sees it."""
    with process(home) as ready:
        der = ssl.PEM_cert_to_DER_cert(Path(ready["ca"]).read_text())
        code = (home / "claim").read_text().split()[0]
        yield Gateway(url=ready["https"], code=code, fingerprint=sha256(der).hexdigest())


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One that ann has claimed."""
    with _unclaimed(tmp_path_factory.mktemp("gateway") / "home") as found:
        body = {"code": found.code, "login": "ann", "password": PASSWORD}
        httpx.post(f"{found.url}/authn/claim", json=body, verify=False).raise_for_status()
        yield found


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of its own: no data folder, no logins."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("SKEP_HOME", "SKEP_URL", "SKEP_TOKEN", "SKEP_CA"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def _login(monkeypatch: pytest.MonkeyPatch, *arguments: str, password: str = PASSWORD) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{password}\n"))
    return main(["login", *arguments, "--account", "ann", "--password-stdin"])


def _things(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["things", "ls", "--json", *arguments])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_printed_link_claims_the_gateway(
    laptop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with _unclaimed(laptop / "gateway" / "home") as gateway:
        link = f"{gateway.url}/#claim={gateway.code}"
        assert _login(monkeypatch, link, "--fingerprint", gateway.fingerprint) == 0
        assert f"logged in at {gateway.url} as ann" in capsys.readouterr().out
        assert main(["client", "ls"]) == 0
        assert "admin" in capsys.readouterr().out


def test_later_commands_go_where_one_logged_in_until_one_logs_out(
    gateway: Gateway, laptop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _login(monkeypatch, gateway.url, "--fingerprint", gateway.fingerprint) == 0

    code, said = _things(capsys)
    assert (code, json.loads(said)) == (0, [])
    assert main(["client", "ls"]) == 0
    assert "ann" in capsys.readouterr().out
    for file in (laptop / "config" / "skep" / "logins").rglob("*"):
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0 or file.name == "lock", file

    assert main(["logout"]) == 0
    code, said = _things(capsys, "--url", gateway.url)
    assert code != 0
    assert logins.saved() is None


def test_other_fingerprint_is_refused_before_anything_is_sent(
    gateway: Gateway, laptop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _login(monkeypatch, gateway.url, "--fingerprint", "00" * 32) == 3
    assert "another fingerprint" in capsys.readouterr().err
    assert logins.saved() is None


def test_wrong_password_keeps_no_login(
    gateway: Gateway, laptop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _login(monkeypatch, gateway.url, "--fingerprint", gateway.fingerprint, password="another one") == 3
    assert logins.saved() is None


def test_token_that_has_ended_is_renewed_once_by_commands_that_run_together(
    gateway: Gateway, laptop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _login(monkeypatch, gateway.url, "--fingerprint", gateway.fingerprint) == 0
    kept = logins.existing()
    file = kept.path / "login.json"
    before = json.loads(file.read_text())
    file.write_text(json.dumps({**before, "until": 0}))

    with ThreadPoolExecutor(4) as together:
        codes = list(together.map(lambda _: main(["things", "ls"]), range(4)))

    after = json.loads(file.read_text())
    assert codes == [0, 0, 0, 0], "a refresh token that is used twice ends the login"
    assert after["refreshToken"] != before["refreshToken"]
    assert _things(capsys)[0] == 0


def test_login_that_was_ended_elsewhere_says_what_to_do(
    gateway: Gateway, laptop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _login(monkeypatch, gateway.url, "--fingerprint", gateway.fingerprint) == 0
    kept = logins.existing()
    file = kept.path / "login.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "until": 0, "refreshToken": "gone"}))
    code, said = _things(capsys)
    assert code == 3
    assert f"skep login {gateway.url}" in said


def test_logins_are_listed(
    gateway: Gateway, laptop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _login(monkeypatch, gateway.url, "--fingerprint", gateway.fingerprint) == 0
    capsys.readouterr()
    assert main(["login", "--list"]) == 0
    assert gateway.url in capsys.readouterr().out


@pytest.mark.parametrize("url", ["gw.local", "ftp://gw.local", "https://"])
def test_what_is_no_address_is_refused(url: str, laptop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _login(monkeypatch, url) == 7


def test_gateway_that_does_not_answer_is_not_taken_for_one_that_is_not_trusted(
    laptop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert _login(monkeypatch, f"https://127.0.0.1:{taken.getsockname()[1]}", "--fingerprint", "00" * 32) == 6
    assert "cannot reach" in capsys.readouterr().err


def test_nothing_to_log_out_of(laptop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logout"]) == 4
