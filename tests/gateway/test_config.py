"""Reading skep.toml: defaults, refusals that help, options laid over it."""

from pathlib import Path

import pytest

from gateway.config import Config, keys, parse_listener
from things.errors import ConfigInvalid


def test_a_home_without_a_file_has_the_defaults(tmp_path: Path) -> None:
    config = Config.load(tmp_path)

    assert config.http.http == "127.0.0.1:8080"
    assert config.requests.expires_s == 3_600


def test_what_is_set_is_known_by_key() -> None:
    given = {"http": {"https": None}, "security": {"insecure": True, "access_token_s": 3_600}}

    assert Config.of(given).changed() == {"http.https": None, "security.insecure": True}
    assert Config().changed() == {}


def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    (tmp_path / "skep.toml").write_text("[mqtt]\nengin = 'native'\n")

    with pytest.raises(ConfigInvalid, match="mqtt/engin: unknown key; did you mean 'engine'"):
        Config.load(tmp_path)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(ConfigInvalid) as refusal:
        Config.of({"version": 2, "requests": {"expires_s": -1}, "histroy": {}})

    assert {problem.pointer for problem in refusal.value.problems} == {"/version", "/requests/expires_s", "/histroy"}


def test_a_file_that_is_no_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "skep.toml").write_text("[mqtt\n")

    with pytest.raises(ConfigInvalid, match=r"skep\.toml: .*line 1"):
        Config.load(tmp_path)


def test_budgets_of_single_series_are_tables_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "skep.toml").write_text(
        '[history]\nkeep_days = 365\n[[history.budgets]]\nthing = "dtw:works:pump-1"\nname = "flow"\ndays = 7\n'
    )

    (budget,) = Config.load(tmp_path).history.budgets

    assert (budget.thing, budget.name, budget.days, budget.bytes) == ("dtw:works:pump-1", "flow", 7.0, None)


def test_options_of_the_command_line_lie_over_the_file() -> None:
    config = Config.of({"http": {"http": "127.0.0.1:1"}}).with_listeners(https="off", mqtt="127.0.0.1:0")

    assert (config.http.http, config.http.https, config.mqtt.mqtt) == ("127.0.0.1:1", None, "127.0.0.1:0")


@pytest.mark.parametrize(
    ("text", "address"), [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("box:65535", ("box", 65_535))]
)
def test_a_listener_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_listener(text) == address


@pytest.mark.parametrize("text", ["", "80", "127.0.0.1", "127.0.0.1:65536", "127.0.0.1:x", ":80", "h:-1", "h:١"])
def test_what_is_no_listener_is_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid):
        parse_listener(text)


@pytest.mark.parametrize("text", ["10.0.0.1/8", "0.0.0.0/0", "panel.example", "*"])
def test_a_proxy_is_trusted_by_address_or_network(text: str) -> None:
    assert len(Config.of({"http": {"trusted_proxies": ["192.0.2.7", "fd00::/8"]}}).http.proxies) == 2
    with pytest.raises(ConfigInvalid, match="trusted_proxies"):
        Config.of({"http": {"trusted_proxies": [text]}})


def test_every_key_has_a_reason() -> None:
    assert all(description for _, description in keys())
