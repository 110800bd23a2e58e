"""The `skep` command as people and scripts use it: what it prints, how it fails, with which exit code."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.pairs import make_pair, own_files
from tests.skep.commands import Said, Skep
from tests.skep.runtimes import process

OFF = ("--http", "off", "--https", "off", "--mqtt", "off", "--mqtts", "off")


def run_apart(*arguments: str) -> Said:
    """The same in a process of its own: `skep run` sets up logging, which would stay with the tests."""
    done = subprocess.run([sys.executable, "-m", "skep", *arguments], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True, slots=True)
class Served:
    """A running runtime: its folder, and the addresses it gave."""

    home: Path
    ready: dict[str, Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("served") / "home"
    with process(home) as ready:
        yield Served(home, ready)


RECORDING = """time,temperature,door
2026-01-01T00:00:00Z,19.5,closed
2026-01-01T00:05:00Z,warm,closed
2026-01-01T00:10:00Z,20.5,open
"""


@pytest.fixture(scope="module")
def hall(served: Served, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Thing that a replay has made; its agent is gone."""
    path = tmp_path_factory.mktemp("recordings") / "hall.csv"
    path.write_text(RECORDING + "2026-01-01T00:15:00Z,21.5,open\n2026-01-01T00:20:00Z,22.5,open\n")
    played = subprocess.run(
        [sys.executable, "-m", "skep", "replay", str(path), "--speed", "max", "--json", "--home", str(served.home)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(played.stdout) == {
        "thingID": "dtw:replay:hall",
        "rows": 4,
        "values": 8,
        "unreadable": 1,
        "backward": 0,
    }
    assert "hall.csv:3: unreadable: temperature: 'warm' is not a number" in played.stderr
    return "dtw:replay:hall"


def test_account_is_made_with_its_token_and_listed_without(skep: Skep, served: Served) -> None:
    home = ("--home", str(served.home))
    made = skep("client", "add", "pumps", "--type", "agent", "--json", *home).json()

    assert set(made) == {"clientID", "type", "role", "token"}
    assert (made["clientID"], made["type"], made["role"]) == ("pumps", "agent", "agent")
    listed = {item["clientID"]: item for item in skep("client", "ls", "--json", *home).json()}
    assert listed["pumps"]["type"] == "agent"
    assert made["token"] not in json.dumps(listed)

    again = skep("client", "add", "pumps", "--type", "agent", *home)
    assert (again.code, again.err.partition(":")[0]) == (5, "conflict")


def test_account_changes_its_role_is_disabled_enabled_and_removed(skep: Skep, served: Served) -> None:
    home = ("--home", str(served.home))
    token = skep("client", "add", "eve", "--type", "consumer", "--role", "viewer", "--json", *home).json()["token"]
    far = ("--url", served.ready["https"], "--token", token, "--ca", served.ready["ca"])

    assert skep("things", "ls", *far).code == 0
    assert skep("client", "ls", *far).code == 3
    assert skep("client", "role", "eve", "operator", *home).out == "eve is now operator\n"
    assert skep("client", "disable", "eve", *home).code == 0
    assert skep("things", "ls", *far).code == 3
    assert skep("client", "enable", "eve", *home).code == 0
    assert skep("client", "remove", "eve", *home).code == 0
    gone = skep("client", "role", "eve", "viewer", *home)
    assert (gone.code, gone.err) == (4, "unknown-account: no account 'eve'\n")


def test_replayed_recording_is_a_thing_with_its_own_times(skep: Skep, served: Served, hall: str) -> None:
    home = ("--home", str(served.home))

    things = {td["id"]: td for td in skep("things", "ls", "--json", *home).json()}
    rows = skep("history", "show", hall, "temperature", "--json", *home).json()
    then = skep("asof", "2026-01-01T00:10:00Z", "dtw:replay:*", "--json", *home).json()

    assert things[hall]["properties"]["temperature"]["type"] == "number"
    assert things[hall]["properties"]["door"]["type"] == "string"
    assert [(row["created"], row["value"]) for row in rows] == [
        ("2026-01-01T00:20:00Z", 22.5),
        ("2026-01-01T00:15:00Z", 21.5),
        ("2026-01-01T00:10:00Z", 20.5),
        ("2026-01-01T00:00:00Z", 19.5),
    ]
    assert {row["name"]: row["value"] for row in then} == {"temperature": 20.5, "door": "open"}


def test_things_are_shown_as_tables_too(skep: Skep, served: Served, hall: str) -> None:
    home = ("--home", str(served.home))

    assert "temperature" in skep("things", "ls", *home).out
    assert hall in skep("things", "ls", "temperature > 22", *home).out
    assert hall not in skep("things", "ls", "temperature > 23 or online", *home).out
    wrong = skep("things", "ls", "temperature >", *home)
    assert (wrong.code, "character 14" in wrong.err) == (7, True)
    assert "22.5" in skep("things", "show", hall, *home).out
    assert "22.5" in skep("history", "show", hall, *home).out
    assert skep("things", "show", "dtw:replay:attic", *home).code == 4


def test_latest_values_are_watched(skep: Skep, served: Served, hall: str) -> None:
    said = skep("watch", f"{hall}/temperature", "--latest", "--count", "1", "--json", "--home", str(served.home))

    assert json.loads(said.out)["value"] == 22.5
    assert skep("watch", hall, "--seconds", "0.2", "--home", str(served.home)) == Said(0, "", "")


def test_invoking_what_is_not_there_or_not_json_is_refused(skep: Skep, served: Served, hall: str) -> None:
    home = ("--home", str(served.home))

    assert skep("invoke", hall, "open", *home).code == 4
    assert skep("invoke", "dtw:replay:attic", "open", *home).code == 4
    broken = skep("invoke", hall, "open", "{not json", *home)
    assert (broken.code, broken.err.partition(":")[0]) == (7, "malformed")
    assert skep("requests", "ls", "--json", *home).json() == []
    assert skep("requests", "show", "01a1fe15-f6b2-7000-8000-5cc1be1fed7e", *home).code == 4


def test_request_for_an_absent_agent_is_listed_shown_and_taken_back_once(skep: Skep, served: Served) -> None:
    home = ("--home", str(served.home))
    token = skep("client", "add", "valves", "--type", "agent", "--json", *home).json()["token"]
    td = {"@context": "https://www.w3.org/2022/wot/td/v1.1", "title": "Valve", "actions": {"turn": {}}}
    url = f"{served.ready['http']}/agent/things/v1"
    httpx2.put(url, json=td, headers={"authorization": f"Bearer {token}"}, trust_env=False).raise_for_status()

    asked = skep("invoke", "dtw:valves:v1", "turn", "90", "--json", *home).json()
    request_id = asked["requestID"]
    (listed,) = skep("requests", "ls", "--thing", "dtw:valves:v1", "--state", "pending", "--json", *home).json()
    shown = skep("requests", "show", request_id, "--json", *home).json()
    table = skep("requests", "show", request_id, *home).out
    taken_back = skep("requests", "cancel", request_id, *home)
    again = skep("requests", "cancel", request_id, *home)

    assert (asked["state"], listed["requestID"], listed["input"]) == ("pending", request_id, 90)
    assert [step["state"] for step in shown["transitions"]] == ["pending"]
    assert request_id in table
    assert taken_back.out.startswith("cancelled")
    assert (again.code, again.err.partition(":")[0]) == (5, "conflict")
    assert skep("requests", "ls", "--thing", "dtw:valves:v1", "--state", "pending", "--json", *home).json() == []
    for number in range(3):
        skep("invoke", "dtw:valves:v1", "turn", str(number), *home)
    newest = skep("requests", "ls", "--thing", "dtw:valves:v1", "--limit", "2", "--json", *home)
    assert [item["input"] for item in newest.json()] == [2, 1]
    assert "--limit shows more" in newest.err
    late = skep("invoke", "dtw:valves:v1", "turn", "--expires", "0", *home)
    assert (late.code, late.err.partition(":")[0]) == (6, "not-connected")


@pytest.mark.parametrize(("most", "drawn"), [(4, 4), (3, 2)])
def test_a_history_is_drawn_whole_however_long(
    skep: Skep, served: Served, hall: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, drawn: int
) -> None:
    pytest.importorskip("matplotlib", reason="needs the plot extra")
    monkeypatch.setattr(import_module("skep.cli.plot"), "POINTS", most)
    picture = tmp_path / "hall.svg"
    since = ("--since", "2025-01-01T00:00:00Z")

    # Four values of twenty minutes: one by one, or as the means of quarters of an hour.
    said = skep("plot", hall, "temperature", *since, "--out", str(picture), "--json", "--home", str(served.home))

    assert said.json() == {"file": str(picture), "points": drawn}
    assert "<svg" in picture.read_text()
    none = skep("plot", hall, "missing", "--out", str(picture), "--home", str(served.home))
    assert (none.code, "no stored numbers" in none.err) == (4, True)


def test_history_is_exported_sealed_planned_and_verified(skep: Skep, served: Served, hall: str, tmp_path: Path) -> None:
    home = ("--home", str(served.home))
    path = tmp_path / "out.csv"

    assert skep("history", "export", hall, "--name", "temperature", "--to-file", str(path), *home).code == 0
    assert path.read_text().splitlines()[1] == "2026-01-01T00:00:00Z,dtw:replay:hall,property,temperature,19.5"
    assert skep("history", "seal", "--json", *home).json()["rows"] >= 8
    assert skep("history", "plan", "--json", *home).json()["rows"] >= 8
    assert skep("history", "verify", "--json", *home).json()["problems"] == []
    part = next((served.home / "lake" / "readings").rglob("*.parquet"))
    whole = part.read_bytes()
    part.write_bytes(whole[:50])
    damaged = skep("history", "verify", "--json", *home)
    aside = skep("history", "verify", "--quarantine", "--json", *home)
    assert (damaged.code, aside.code) == (1, 1)
    assert (json.loads(damaged.out)["quarantined"], json.loads(aside.out)["quarantined"]) == (0, 1)
    assert skep("history", "verify", "--json", *home).json()["problems"] == []
    assert skep("lake", "status", "--json", *home).json()["damaged"] > 0
    mended = skep("lake", "mend", *home)
    assert (mended.code, mended.out.splitlines()[1]) == (0, "nothing else is damaged")
    assert skep("lake", "status", "--json", *home).json()["damaged"] == 0
    assert skep("lake", "vacuum", "--json", *home).json() == {"files": 0, "bytes": 0}


def test_decisions_are_explained(skep: Skep, served: Served, hall: str) -> None:
    home = ("--home", str(served.home))
    skep("client", "add", "olga", "--type", "consumer", "--role", "operator", *home)

    allowed = skep("authz", "explain", "olga", "invoke_action", hall, "open", *home)
    denied = skep("authz", "explain", "olga", "write_property", hall, "door", "--json", *home)

    assert (allowed.code, allowed.out.splitlines()[0]) == (0, "allowed")
    assert [line.split(maxsplit=1)[0] for line in allowed.out.splitlines()[2:]] == [
        "decided",
        "limit",
        "policy",
        "rule",
        "role",
    ]
    assert "allow (role operator allows invoke_action on any)" in allowed.out
    assert denied.code == 1
    assert json.loads(denied.out)["allowed"] is False


def test_audit_log_is_verified_and_begins_with_the_configuration(skep: Skep, served: Served) -> None:
    assert skep("audit", "verify", "--json", "--home", str(served.home)).json()["intact"] is True
    lines = (served.home / "audit" / "000001.jsonl").read_text().splitlines()
    beginning, first = (json.loads(line) for line in lines[:2])
    assert (beginning["act"], first["act"], first["by"]) == ("log", "configuration", "skep")
    assert first["details"] == {"set": "http.http http.https mqtt.mqtt mqtt.mqtts"}


def test_commands_do_without_a_runtime_and_leave_the_folder_free(skep: Skep, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()

    made = skep("client", "add", "pumps", "--type", "agent", "--json", "--home", str(home)).json()
    listed = skep("client", "ls", "--json", "--home", str(home)).json()

    assert made["token"]
    assert [item["clientID"] for item in listed] == ["pumps"]


@pytest.mark.parametrize("command", [("things", "ls"), ("watch",), ("invoke", "dtw:a:b", "c", "--wait")])
def test_folder_that_is_not_there_is_said_with_what_to_do(
    skep: Skep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr("skep.cli.access.STARTING_S", 0.6)
    home = tmp_path / "none"

    said = skep(*command, "--home", str(home))

    assert said.code == 6
    assert said.err.splitlines() == [
        f"waiting for a runtime in {home} …",
        f"unavailable: there is no data folder {home}; start one with: skep run --home {home}",
    ]
    assert not home.exists()


def test_watching_needs_a_runtime_that_serves(skep: Skep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skep.cli.access.STARTING_S", 0.0)

    said = skep("watch", "--home", str(tmp_path))

    assert (said.code, said.err) == (
        6,
        f"unavailable: no runtime serves {tmp_path}; start one with: skep run --home {tmp_path}\n",
    )


def test_commands_wait_for_a_runtime_that_is_coming_up(tmp_path: Path) -> None:
    home = tmp_path / "home"
    asked = [
        subprocess.Popen([sys.executable, "-m", "skep", *words, "--home", str(home)], stdout=-1, stderr=-1, text=True)
        for words in (("things", "ls", "--services"), ("requests", "ls"), ("history", "plan"))
    ]

    with process(home):  # which ends only when all have been answered
        said = [(*one.communicate(timeout=60), one.returncode) for one in asked]

    assert [code for _, _, code in said] == [0, 0, 0], said
    assert "dtw:directory:things" in said[0][0]


def test_second_runtime_in_the_same_folder_is_refused(served: Served) -> None:
    said = run_apart("run", "--home", str(served.home), *OFF)

    assert (said.code, said.err.partition(":")[0]) == (9, "locked")


def test_port_in_use_is_said_in_one_line(served: Served, tmp_path: Path) -> None:
    taken = served.ready["http"].removeprefix("http://")

    said = run_apart("run", "--home", str(tmp_path / "home"), *OFF[2:], "--http", taken)

    assert (said.code, said.err.splitlines()[-1].partition(":")[0]) == (9, "address-in-use")


def test_unusable_home_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    said = run_apart("run", "--home", str(tmp_path / "file"), *OFF)

    assert (said.code, said.err.partition(":")[0]) == (7, "config-invalid")


def test_unknown_configuration_key_suggests_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "skep.toml").write_text("[mqtt]\nmax_inflite = 3\n")

    said = run_apart("run", "--home", str(tmp_path))

    assert said.code == 7
    assert "mqtt/max_inflite" in said.err
    assert "did you mean 'max_inflight'?" in said.err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("thngs",), "did you mean 'things'?"),
        (("things", "ls", "--hom", "x"), "Did you mean '--home'?"),
        (("client", "ad"), ""),
        (("client", "add", "x"), "Missing option '--type'"),
        (("things", "ls", "--home", "x", "--url", "https://x"), "not both"),
        (("history", "show", "dtw:a:b", "--from", "yesterdayish"), ""),
    ],
)
def test_wrong_command_lines_are_answered_with_a_hint(skep: Skep, arguments: Sequence[str], hint: str) -> None:
    said = skep(*arguments)

    assert said.code in (2, 7)
    assert hint in said.err


@pytest.mark.parametrize("speed", ["0", "-1", "fast"])
def test_impossible_speeds_are_refused(skep: Skep, tmp_path: Path, speed: str) -> None:
    path = tmp_path / "r.csv"
    path.write_text(RECORDING)

    said = skep("replay", str(path), "--speed", speed, "--mqtt", "mqtt://127.0.0.1:9", "--token", "x")

    assert (said.code, said.err.partition(":")[0]) == (7, "invalid")


def test_unreachable_runtime_and_wrong_token_have_their_own_codes(skep: Skep, served: Served) -> None:
    nobody = skep("things", "ls", "--url", "https://127.0.0.1:9", "--token", "x", "--ca", served.ready["ca"])
    wrong = skep("things", "ls", "--url", served.ready["https"], "--token", "x", "--ca", served.ready["ca"])

    assert (nobody.code, nobody.err.partition(":")[0]) == (6, "unavailable")
    assert wrong.code == 3


def test_a_folder_on_the_line_counts_more_than_an_address_in_the_environment(
    skep: Skep, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKEP_URL", "https://127.0.0.1:9")

    assert skep("things", "ls", "--home", str(served.home), "--json").code == 0
    assert skep("things", "ls", "--home", str(served.home), "--url", "https://x").code == 2


def test_the_lake_says_how_it_stands_is_compacted_and_verified(skep: Skep, served: Served) -> None:
    home = ("--home", str(served.home))
    skep("history", "seal", *home)

    status = skep("lake", "status", "--json", *home).json()
    compacted = skep("lake", "compact", "--day", "1999-01-01", "--json", *home).json()
    verified = skep("lake", "verify", *home)

    assert status["parts"] >= 1
    assert compacted["merged"] == 0
    assert (verified.code, verified.out.partition("parts")[2]) == (0, " are as they were written\n")


def test_doctor_says_what_a_running_gateway_warns_of(skep: Skep, served: Served) -> None:
    found = {item["check"]: item for item in skep("doctor", "--json", "--home", str(served.home)).json()}

    assert found["health"]["detail"] == "ready, without warnings"


def test_doctor_looks_at_the_owners_certificate(skep: Skep, tmp_path: Path) -> None:
    files = own_files(tmp_path / "own")
    make_pair(files)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "skep.toml").write_text(
        f'[security]\ncertificate = "{files.certificate}"\ncertificate_key = "{files.key}"\n', "utf-8"
    )

    def found() -> tuple[bool, str]:
        said = json.loads(skep("doctor", "--json", "--home", str(home)).out)
        (one,) = [one for one in said if one["check"] == "certificate"]
        return one["ok"], one["detail"]

    good = found()
    make_pair(files, days=-1)
    ended = found()
    files.key.write_text("none")
    bad = found()

    assert good == (True, f"{files.certificate} is valid for 89 more days")
    assert not ended[0]
    assert f"put another one into {files.certificate}" in ended[1]
    assert bad == (False, f"{files.key} does not hold a private key in PEM")


def test_doctor_finds_what_is_wrong(skep: Skep, tmp_path: Path) -> None:
    (tmp_path / "skep.toml").write_text("versoin = 1\n")
    tmp_path.chmod(0o755)

    said = skep("doctor", "--json", "--home", str(tmp_path))

    assert said.code == 1
    wrong = {item["check"] for item in json.loads(said.out) if not item["ok"]}
    assert {"home", "config"} <= wrong


def test_module_is_the_same_command() -> None:
    said = subprocess.run([sys.executable, "-m", "skep", "--version"], capture_output=True, text=True, timeout=30)

    assert (said.returncode, said.stdout.partition(",")[0]) == (0, "skep")


def test_a_store_that_is_gone_is_refused_with_exit_code_8_until_it_is_asked_for(tmp_path: Path, skep: Skep) -> None:
    home = ("--home", str(tmp_path))
    assert skep("stores", "ls", "--json", *home).json() == {"installation": None, "stores": {}, "setAside": []}
    skep("client", "add", "pump", "--type", "agent", *home)
    listed = skep("stores", "ls", "--json", *home).json()
    assert listed["stores"]["accounts.db"]["accounts"] == 1
    for part in ("", "-wal", "-shm"):
        (tmp_path / f"accounts.db{part}").unlink(missing_ok=True)
    (tmp_path / "claim").unlink()

    refused = run_apart("run", *home, *OFF)

    assert refused.code == 8
    assert "accounts.db is missing (1 accounts were in it)" in refused.err
    assert not (tmp_path / "claim").exists()
    assert skep("stores", "accept", "accounts.db", *home).code == 4
    assert skep("stores", "reset", "accounts.db", *home).code == 0
    assert skep("client", "ls", "--json", *home).json() == []
    assert (tmp_path / "claim").exists()


def test_what_was_set_aside_is_told_until_it_is_cleared(tmp_path: Path, skep: Skep) -> None:
    home = ("--home", str(tmp_path))
    skep("client", "ls", *home)
    (tmp_path / "gateway.json").unlink()
    skep("client", "ls", *home)

    told = skep("stores", "ls", *home)
    doctor = skep("doctor", "--json", *home)

    assert (told.code, "gateway.json" in told.out) == (1, True)
    (finding,) = (one for one in json.loads(doctor.out) if one["check"] == "stores")
    assert (finding["ok"], "gateway.json" in finding["detail"]) == (False, True)
    assert skep("stores", "clear", "gateway.json", *home).code == 0
    assert skep("stores", "ls", *home).code == 0
    assert skep("stores", "clear", *home).code == 4
