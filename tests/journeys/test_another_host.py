"""The gateway as another machine on its network meets it: claimed, verified, followed, by every name it has."""

import base64
import hashlib
import json
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.lan import GATEWAY, GATEWAY_6, Lan, lan

pytestmark = pytest.mark.anyio

ASKED = """
import http.client, json, ssl, sys
server, port, name, ca, method, path, headers, body = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
class Connection(http.client.HTTPSConnection):
    def connect(self):
        http.client.HTTPConnection.connect(self)
        self.sock = context.wrap_socket(self.sock, server_hostname=name)
connection = Connection(server, int(port), timeout=20)
try:
    connection.request(method, path, body or None, json.loads(headers))
except ssl.SSLCertVerificationError as error:
    print(json.dumps({"unverified": error.verify_message}))
else:
    reply = connection.getresponse()
    text = reply.read().decode()
    print(json.dumps({"status": reply.status, "headers": dict(reply.getheaders()), "text": text}))
"""
"""One request over verified TLS: to a server, as a name."""

MQTT = """
import json, ssl, sys, threading
import paho.mqtt.client as mqtt
server, port, ca, user, password = sys.argv[1:6]
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
client.username_pw_set(user, password)
client.tls_set(ca_certs=ca)
done, found = threading.Event(), {}
def connected(client, userdata, flags, reason, properties):
    found["reason"] = str(reason)
    if len(sys.argv) > 6 and not reason.is_failure:
        client.subscribe("things/values/latest/td")
    else:
        done.set()
def came(client, userdata, message):
    found["td"] = message.payload.decode()
    done.set()
client.on_connect, client.on_message = connected, came
client.connect(server, int(port), 30)
client.loop_start()
assert done.wait(20)
client.disconnect()
print(json.dumps(found))
"""
"""One MQTT connection over verified TLS, and the description of a Thing if it is asked for."""


DOCTOR = """
import contextlib, io, json, sys
from skep.cli import main
out = io.StringIO()
with contextlib.redirect_stdout(out):
    code = main(["doctor", "--json", *sys.argv[1:]])
print(json.dumps({"code": code, "out": out.getvalue()}))
"""
"""`skep doctor`, and what it prints."""


@pytest.fixture
async def network() -> AsyncIterator[Lan]:
    with lan() as found:
        yield found


class Gateway:
    """A gateway on the network, as its laptop sees it."""

    def __init__(self, network: Lan, home: Path, ready: dict[str, Any]) -> None:
        self.network = network
        self.home = home
        self.ready = ready
        self.https = int(ready["https"].rpartition(":")[2])
        self.mqtts = int(ready["mqtts"].rpartition(":")[2])
        self.ca = str(ready["ca"])

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        name: str = GATEWAY,
        server: str = GATEWAY,
        host: str | None = None,
        method: str | None = None,
        **headers: str,
    ) -> dict[str, Any]:
        shown = f"[{name}]" if ":" in name else name
        fields = {"host": host or f"{shown}:{self.https}", "content-type": "application/json", **headers}
        text = "" if body is None else json.dumps(body)
        verb = method or ("GET" if body is None else "POST")
        given = (server, str(self.https), name, self.ca, verb, path, json.dumps(fields), text)
        found: dict[str, Any] = self.network.run(self.network.laptop, ASKED, *given)
        return found

    def claim(self, **more: str) -> dict[str, Any]:
        code = (self.home / "claim").read_text().strip()
        body = {"code": code, "login": "mia", "password": "correct horse battery", "cookie": True}
        return self.ask("/authn/claim", body, **more)


async def opened(network: Lan, home: Path, settings: str = "", host: str = "0.0.0.0") -> Gateway:
    home.mkdir(mode=0o700)  # noqa: ASYNC240 - once, before anything runs
    (home / "skep.toml").write_text(settings)
    listeners = ("--https", f"{host}:0", "--mqtts", f"{host}:0", "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0")
    return Gateway(network, home, await network.skep(network.gateway, home, *listeners))


async def test_it_is_claimed_by_a_page_at_its_address_and_by_no_foreign_page(network: Lan, tmp_path: Path) -> None:
    gateway = await opened(network, tmp_path / "home")
    here = f"https://{GATEWAY}:{gateway.https}"

    refused = gateway.claim(origin="https://evil.example")
    claimed = gateway.claim(origin=here)
    body = {"login": "mia", "password": "correct horse battery", "cookie": True}
    again = gateway.ask("/authn/login", body, origin=here)

    assert refused["status"] == 403
    assert "http.allowed_origins" in refused["text"]
    assert (claimed["status"], again["status"]) == (200, 200)


async def test_its_certificate_is_verified_by_every_name_and_address(network: Lan, tmp_path: Path) -> None:
    gateway = await opened(network, tmp_path / "home", '[gateway]\nnames = ["gw.example", "10.77.0.1"]\n', "[::]")

    for name in (GATEWAY, GATEWAY_6, "gw.example", "10.77.0.1", "localhost"):
        assert gateway.ask("/livez", name=name)["status"] == 200, name
    assert gateway.ask("/livez", name=GATEWAY_6, server=GATEWAY_6)["status"] == 200
    assert "unverified" in gateway.ask("/livez", name="other.example")
    assert "unverified" in gateway.ask("/livez", name="10.9.9.2")


async def test_doctor_looks_at_it_from_the_laptop(network: Lan, tmp_path: Path) -> None:
    gateway = await opened(network, tmp_path / "home", '[gateway]\nnames = ["gw.example"]\n')
    here = f"https://{GATEWAY}:{gateway.https}"
    gateway.claim(origin=here)
    login = gateway.ask("/authn/login", {"login": "mia", "password": "correct horse battery"})
    token = json.loads(login["text"])["accessToken"]

    def looked(url: str, *options: str) -> dict[str, dict[str, Any]]:
        said = network.run(network.laptop, DOCTOR, "--url", url, *options)
        return {one["check"]: one for one in json.loads(said["out"])}

    well = looked(here, "--ca", gateway.ca, "--token", token)
    unknown = looked(here)
    nowhere = looked("https://gw.example:8443")
    silent = looked(f"https://{GATEWAY}:1")

    assert {name: one["detail"] for name, one in well.items() if not one["ok"] and name != "health"} == {}
    assert f"mqtts://{GATEWAY}:{gateway.mqtts}" in well["mqtt"]["detail"]
    assert well["forms"]["detail"] == f"lead to {GATEWAY}"
    assert [*unknown] == ["name", "https", "certificate"]
    assert f"skep login {here}" in unknown["certificate"]["detail"]
    assert [*nowhere] == ["name"]
    assert "gw.example" in nowhere["name"]["detail"]
    assert "nothing listens there" in silent["https"]["detail"]


async def test_an_address_that_comes_while_it_runs_is_certified_and_its_pages_are_let_in(
    network: Lan, tmp_path: Path
) -> None:
    gateway = await opened(network, tmp_path / "home")
    new = "10.9.9.77"
    assert "unverified" in gateway.ask("/livez", name=new)

    network.ip(network.gateway, "addr", "del", f"{GATEWAY}/24", "dev", "eth0")
    network.ip(network.gateway, "addr", "add", f"{new}/24", "dev", "eth0")
    with anyio.fail_after(30):
        while "unverified" in gateway.ask("/livez", name=new, server=new):  # noqa: ASYNC110 - another process
            await anyio.sleep(0.2)

    claimed = gateway.claim(name=new, server=new, origin=f"https://{new}:{gateway.https}")
    assert claimed["status"] == 200


async def test_mqtt_over_tls_is_verified_by_address(network: Lan, tmp_path: Path) -> None:
    gateway = await opened(network, tmp_path / "home")
    claimed = gateway.claim(origin=f"https://{GATEWAY}:{gateway.https}")
    assert claimed["status"] == 200

    found = network.run(network.laptop, MQTT, GATEWAY, str(gateway.mqtts), gateway.ca, "mia", "correct horse battery")

    assert found["reason"] == "Success"


def addresses(document: str) -> set[str]:
    """Scheme and authority of every address in a document, but those of vocabularies."""
    found = re.findall(r'"((?:https?|wss?|mqtts?)://[^/"{]+)', document)
    return {one for one in found if not one.endswith(("w3.org", "w3.org:443"))}


@pytest.mark.parametrize("name", [GATEWAY, "gw.example"])
async def test_every_address_it_tells_is_the_one_it_was_asked_at_and_can_be_followed(
    network: Lan, tmp_path: Path, name: str
) -> None:
    gateway = await opened(network, tmp_path / "home", '[gateway]\nnames = ["gw.example"]\n')
    assert gateway.claim(name=name, origin=f"https://{name}:{gateway.https}")["status"] == 200
    login = "Basic " + base64.b64encode(b"mia:correct horse battery").decode()
    own = {f"https://{name}:{gateway.https}", f"wss://{name}:{gateway.https}", f"mqtts://{name}:{gateway.mqtts}"}

    described = gateway.ask("/things/dtw:values:latest", name=name, authorization=login)
    listed = gateway.ask("/things", name=name, authorization=login)
    directory = gateway.ask("/.well-known/wot", name=name)
    foreign = gateway.ask("/things/dtw:values:latest", host="evil.example", authorization=login)
    td = json.loads(described["text"])
    form = next(one for one in td["actions"]["readProperties"]["forms"] if "invokeaction" in one["op"])
    path = form["href"].removeprefix(f"https://{name}:{gateway.https}")
    followed = gateway.ask(path, {"thingID": "dtw:values:latest"}, name=name, authorization=login)

    assert addresses(described["text"]) == addresses(listed["text"]) == own
    assert addresses(directory["text"]) == {f"https://{name}:{gateway.https}"}
    assert addresses(foreign["text"]) == {one.replace(name, GATEWAY) for one in own}
    assert followed["status"] in (200, 201), followed


async def test_mqtt_descriptions_and_the_ready_file_follow_an_address_that_changes(
    network: Lan, tmp_path: Path
) -> None:
    gateway = await opened(network, tmp_path / "home")
    ready, new = tmp_path / "home.ready.json", "10.9.9.77"
    assert gateway.ready["https"] == f"https://{GATEWAY}:{gateway.https}"
    assert gateway.claim(origin=f"https://{GATEWAY}:{gateway.https}")["status"] == 200

    network.ip(network.gateway, "addr", "del", f"{GATEWAY}/24", "dev", "eth0")
    network.ip(network.gateway, "addr", "add", f"{new}/24", "dev", "eth0")
    with anyio.fail_after(30):
        while new not in ready.read_text():  # noqa: ASYNC110 - another process
            await anyio.sleep(0.1)
    found = network.run(network.laptop, MQTT, new, str(gateway.mqtts), gateway.ca, "mia", "correct horse battery", "td")

    assert json.loads(ready.read_text())["mqtts"] == f"mqtts://{new}:{gateway.mqtts}"
    assert addresses(found["td"]) == {
        f"https://{new}:{gateway.https}",
        f"wss://{new}:{gateway.https}",
        f"mqtts://{new}:{gateway.mqtts}",
    }


async def test_simulated_devices_say_they_are_live_once_they_are(network: Lan, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "skep.toml").write_text('[mqtt]\nmqtt = ""\nmqtts = "0.0.0.0:0"\n')
    await network.skep(network.gateway, home, "--http", "off", "--https", "0.0.0.0:0")

    with network.said(network.gateway, "simulate", "--home", str(home)) as line:
        assert "are live" in line
    found = network.run(network.gateway, LISTED, str(home))

    assert "dtw:simulated:pump-1" in found


LISTED = """
import asyncio, json, sys
from skep import Consumer
async def main():
    async with Consumer(socket=sys.argv[1] + "/control.sock") as consumer:
        found = await consumer.call("dtw:directory:things", "listTDs", {"limit": 100})
        print(json.dumps([td["id"] for td in found["items"]]))
asyncio.run(main())
"""
"""The ids of all Things."""


COMMANDS = """
import json, os, subprocess, sys, tempfile
link, fingerprint, password = sys.argv[1:]
with tempfile.TemporaryDirectory() as laptop:
    plain = {k: v for k, v in os.environ.items() if k not in ("SKEP_HOME", "SKEP_URL", "SKEP_TOKEN", "SKEP_CA")}
    environment = {**plain, "HOME": laptop, "XDG_CONFIG_HOME": laptop}
    def skep(*arguments, given=""):
        command = [sys.executable, "-m", "skep", *arguments]
        done = subprocess.run(command, env=environment, input=given, capture_output=True, text=True, timeout=60)
        return [done.returncode, done.stdout, done.stderr]
    login = ["login", link, "--account", "mia", "--password-stdin", "--fingerprint"]
    print(json.dumps({
        "foreign": skep(*login, "00" * 32, given=password),
        "login": skep(*login, fingerprint, given=password),
        "accounts": skep("client", "ls", "--json"),
        "logout": skep("logout"),
    }))
"""
"""Commands on the laptop: with another fingerprint, then the right one."""


@pytest.mark.parametrize("name", [GATEWAY, f"[{GATEWAY_6}]"])
async def test_commands_of_a_laptop_claim_and_rule_it_by_its_address(network: Lan, tmp_path: Path, name: str) -> None:
    gateway = await opened(network, tmp_path / "home", host="[::]" if name.startswith("[") else "0.0.0.0")
    der = ssl.PEM_cert_to_DER_cert(Path(gateway.ca).read_text())  # noqa: ASYNC240 - once
    code = (gateway.home / "claim").read_text().strip()
    link = f"https://{name}:{gateway.https}/#claim={code}"

    found = network.run(
        network.laptop, COMMANDS, link, hashlib.sha256(der).hexdigest(), "correct horse battery\n", timeout_s=120
    )

    assert found["foreign"][0] == 3
    assert "another fingerprint" in found["foreign"][2]
    assert found["login"][:2] == [0, f"logged in at https://{name}:{gateway.https} as mia\n"]
    assert [row["clientID"] for row in json.loads(found["accounts"][1])] == ["mia"]
    assert found["logout"][0] == 0
