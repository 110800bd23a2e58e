"""`skep config` checks, shows with origins, and changes skep.toml without spoiling it."""

import json
import tomllib
from pathlib import Path

import pytest

from skep.cli import main
from tests.pairs import make_pair, own_files

MINE = """\
# of the pump house
version = 1

[http]
https = "0.0.0.0:8443"  # reached from the office
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "skep.toml").write_text(MINE)
    return tmp_path


def _config(home: Path, *arguments: str) -> int:
    return main(["config", *arguments, "--home", str(home)])


def test_check_says_that_it_is_fine(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _config(home, "check") == 0
    assert capsys.readouterr().out == "fine: skep.toml, 2 keys set\n"


def test_check_refuses_what_a_runtime_would(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "skep.toml").write_text("[mqtt]\nengin = 'native'\nmax_inflight = 0\n")
    assert _config(home, "check") == 7
    said = capsys.readouterr().err
    assert "did you mean 'engine'" in said
    assert "mqtt/max_inflight" in said


def test_show_tells_what_is_set_and_where(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKEP_MQTT__ENGINE", "amqtt")
    assert _config(home, "show", "--origin", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "version": {"value": 1, "origin": "skep.toml"},
        "http.https": {"value": "0.0.0.0:8443", "origin": "skep.toml"},
        "mqtt.engine": {"value": "amqtt", "origin": "SKEP_MQTT__ENGINE"},
    }


def test_effective_configuration_has_every_key(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gateway.config import keys

    assert _config(home, "show", "--effective", "--json") == 0
    assert list(json.loads(capsys.readouterr().out)) == [key for key, _ in keys()]


def test_section_is_shown_whole(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _config(home, "show", "log") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()][1:] == [
        ["log.level", '"info"'],
        ["log.json_lines", "false"],
    ]


def test_password_of_an_address_is_not_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _config(home, "set", "database_url", "postgresql://skep:secret@db/site") == 0
    assert _config(home, "show", "database_url") == 0
    said = capsys.readouterr().out
    assert "postgresql://skep:***@db/site" in said
    assert "secret" not in said


def test_set_and_unset_keep_comments_and_order(home: Path) -> None:
    assert _config(home, "set", "history.keep_days", "365") == 0
    assert _config(home, "set", "gateway.names", "gw.example, 192.0.2.7") == 0
    text = (home / "skep.toml").read_text()
    assert text.startswith(MINE)
    assert tomllib.loads(text)["history"] == {"keep_days": 365}
    assert tomllib.loads(text)["gateway"] == {"names": ["gw.example", "192.0.2.7"]}

    assert _config(home, "unset", "history.keep_days") == 0
    assert "keep_days" not in (home / "skep.toml").read_text()


def test_first_key_makes_the_file(tmp_path: Path) -> None:
    home = tmp_path / "new"
    assert _config(home, "set", "mqtt.engine", "amqtt") == 0
    assert tomllib.loads((home / "skep.toml").read_text()) == {"version": 1, "mqtt": {"engine": "amqtt"}}
    assert (home / "skep.toml").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("set", "mqtt.engine", "rabbit"), 7, "mqtt/engine"),
        (("set", "mqtt.engin", "native"), 4, "did you mean 'mqtt.engine'"),
        (("set", "mqtt", "native"), 7, "mqtt"),
        (("unset", "history.keep_days"), 4, "is not set"),
        (("show", "nothing"), 4, "there is no key"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    home: Path, arguments: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _config(home, *arguments) == code
    assert said in capsys.readouterr().err
    assert (home / "skep.toml").read_text() == MINE


def test_file_that_is_no_toml_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "skep.toml").write_text("[mqtt\n")
    assert _config(home, "set", "mqtt.engine", "native") == 7
    assert "skep.toml: " in capsys.readouterr().err
    assert (home / "skep.toml").read_text() == "[mqtt\n"


def test_an_own_certificate_that_cannot_be_served_is_found_before_a_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, home = own_files(tmp_path / "own"), tmp_path / "home"
    make_pair(files)

    def check() -> tuple[int, str]:
        capsys.readouterr()
        return _config(home, "check"), capsys.readouterr().err

    assert _config(home, "set", "security.certificate", str(files.certificate)) == 0
    half = check()
    assert _config(home, "set", "security.certificate_key", str(files.key)) == 0
    good = check()
    files.key.write_text("none")
    bad = check()

    assert half == (7, "config-invalid: security.certificate and security.certificate_key go together\n")
    assert good == (0, "")
    assert bad == (7, f"config-invalid: {files.key} does not hold a private key in PEM\n")
