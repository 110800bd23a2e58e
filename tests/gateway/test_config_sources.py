"""The environment and files with secrets lie over skep.toml, and every key tells where it was set."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.config import Config, settings
from things.errors import ConfigInvalid


def _home(tmp_path: Path, text: str = "") -> Path:
    (tmp_path / "skep.toml").write_text(text)
    return tmp_path


def test_environment_lies_over_the_file_key_by_key(tmp_path: Path) -> None:
    home = _home(tmp_path, '[http]\nhttp = "127.0.0.1:1"\nhttps = "127.0.0.1:2"\n')
    config = Config.load(home, {"SKEP_HTTP__HTTPS": "0.0.0.0:8443", "SKEP_LOG__JSON_LINES": "true"})
    assert (config.http.http, config.http.https, config.log.json_lines) == ("127.0.0.1:1", "0.0.0.0:8443", True)
    assert Config.load(home, {}).http.https == "127.0.0.1:2"


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("SKEP_DATABASE_URL", "postgresql://db", "database_url", "postgresql://db"),
        ("SKEP_MQTT__ENGINE", "amqtt", "mqtt.engine", "amqtt"),
        ("SKEP_MESSAGING_NODE__DOMAIN", "1234", "messaging_node.domain", "1234"),
        ("SKEP_HISTORY__KEEP_DAYS", "365", "history.keep_days", 365.0),
        ("SKEP_HISTORY__DURABLE", "false", "history.durable", False),
        ("SKEP_HTTP__HTTPS", "", "http.https", ""),
        ("SKEP_GATEWAY__NAMES", "gw.example, 192.0.2.7", "gateway.names", ["gw.example", "192.0.2.7"]),
        ("SKEP_GATEWAY__NAMES", '["gw.example"]', "gateway.names", ["gw.example"]),
        ("SKEP_LIMITS__ROLES__OPERATOR__MESSAGES_PER_SECOND", "5", "limits.roles.operator.messages_per_second", 5.0),
    ],
)
def test_variable_is_read_as_its_key_takes_it(tmp_path: Path, name: str, text: str, key: str, value: object) -> None:
    assert Config.load(tmp_path, {name: text}).changed()[key] == value
    assert settings(tmp_path, {name: text}).origins == {key: name}


def test_variables_of_commands_are_none_of_the_configuration(tmp_path: Path) -> None:
    said = settings(tmp_path, {"SKEP_HOME": "/x", "SKEP_TOKEN": "t", "SKEP_S3": "x", "PATH": "/bin"})
    assert said.data == {}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"SKEP_MQTT__ENGIN": "native"}, r"mqtt/engin: unknown key; did you mean 'engine'\? \(SKEP_MQTT__ENGIN\)"),
        ({"SKEP_HISTORY__KEEP_DAYS": "soon"}, r"history/keep_days: .* number.*\(SKEP_HISTORY__KEEP_DAYS\)"),
        ({"SKEP_DATABASE_URL_FILE": "/nowhere/secret"}, "SKEP_DATABASE_URL_FILE: /nowhere/secret cannot be read"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named_by_its_variable(
    tmp_path: Path, environment: Mapping[str, str], said: str
) -> None:
    with pytest.raises(ConfigInvalid, match=said):
        Config.load(tmp_path, environment)


def test_secret_is_read_from_the_file_a_variable_names(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("postgresql://skep:word@db/site\n")
    config = Config.load(tmp_path, {"SKEP_DATABASE_URL_FILE": str(tmp_path / "secret")})
    assert config.database_url == "postgresql://skep:word@db/site"


def test_key_whose_own_name_ends_in_file_is_not_taken_for_a_secret(tmp_path: Path) -> None:
    config = Config.load(tmp_path, {"SKEP_BACKUP__PASSPHRASE_FILE": "/run/secrets/word"})
    assert config.backup.passphrase_file == "/run/secrets/word"


def test_secret_is_read_from_the_file_that_skep_toml_names(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("postgresql://db")
    home = _home(tmp_path, f'database_url = {{ file = "{tmp_path}/secret" }}\n')
    assert Config.load(home, {}).database_url == "postgresql://db"
    assert settings(home, {}).origins == {"database_url": f"{tmp_path}/secret, as skep.toml says"}


@pytest.mark.parametrize(("content", "said"), [(b"\xff\xfe", "holds no text"), (b"x" * 70_000, "is larger than")])
def test_file_that_cannot_hold_a_secret_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(ConfigInvalid, match=said):
        Config.load(tmp_path, {"SKEP_DATABASE_URL_FILE": str(tmp_path / "secret")})


def test_number_is_not_read_from_a_file_by_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="history/keep_days"):
        Config.load(_home(tmp_path, '[history]\nkeep_days = { file = "/x" }\n'), {})
