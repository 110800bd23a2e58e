"""The register of credentials over the wire: everything by which somebody is let in is listed, whatever door it serves,
and what is revoked closes what is open by it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.bindings.messaging_node.support import REGISTRY, client
from tests.bindings.mqtt.support import Client as MqttClient
from tests.bindings.mqtt.support import Refused
from tests.support import Account, Skep, skep

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse battery"
WITHIN_S = 10.0


@asynccontextmanager
async def house(home: Path) -> AsyncIterator[tuple[Skep, Account, Account]]:
    """A runtime, its admin, and vera."""
    async with skep(home) as runtime:
        yield runtime, await runtime.add("root", role="admin"), await runtime.add("vera")


class Admin:
    """`dtw:authn:admin` over HTTP."""

    def __init__(self, runtime: Skep, account: Account, service: str = "admin") -> None:
        headers = {"authorization": f"Bearer {account.token}"}
        self.http = httpx.AsyncClient(base_url=runtime.http, headers=headers, trust_env=False, timeout=20)
        self.service = service

    async def __aenter__(self) -> "Admin":
        return self

    async def __aexit__(self, *_failure: object) -> None:
        await self.http.aclose()

    async def call(self, method: str, **given: Any) -> httpx.Response:
        return await self.http.post(f"/rpc/dtw:authn:{self.service}/{method}", json=given)

    async def listed(self, **given: Any) -> list[dict[str, Any]]:
        reply = await self.call("listCredentials", **given)
        assert reply.status_code == 200, reply.text
        found: list[dict[str, Any]] = reply.json()["items"]
        return found


def of_kind(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (one,) = [item for item in found if item["kind"] == kind]
    return one


async def test_what_lives_by_a_credential_is_listed_with_it_and_ends_with_it(tmp_path: Path) -> None:
    async with house(tmp_path) as (runtime, root, vera), Admin(runtime, root) as admin:
        async with client(runtime, "vera", vera.token) as node:
            url = (await node.allocate())[0]
            assert await node.code("create", REGISTRY, {"value": {"url": url, "status": "live"}}) == 200
            async with httpx.AsyncClient(base_url=runtime.http, trust_env=False, timeout=20) as http:
                bearer = {"authorization": f"Bearer {vera.token}"}
                given = (await http.post("/authn/ticket", json={"stream": "/stream"}, headers=bearer)).json()
                async with http.stream("GET", given["href"]) as stream:
                    lines = stream.aiter_lines()
                    assert await anext(lines) == ": ok"
                    found = await admin.listed(clientID="vera")
                    token = of_kind(found, "token")
                    assert {one["kind"] for one in found} == {"token", "session", "registration", "ticket"}
                    assert {one["label"] for one in found if one["kind"] == "session"} == {"node", "http"}
                    others = [one for one in found if one is not token]
                    assert {one["parent"] for one in others} == {token["credentialID"]}
                    assert all(one["created"] for one in others)
                    assert of_kind(found, "registration")["credentialID"] == url

                    revoked = await admin.call("revokeCredential", credentialID=token["credentialID"])

                    assert revoked.status_code in (200, 204), revoked.text
                    with anyio.fail_after(WITHIN_S):
                        async for _ in lines:
                            pass
                    assert await node.closed() == 1008
                    assert (await http.get(given["href"])).status_code == 401
        left = await admin.listed(clientID="vera")
        assert left == []
        (ended,) = await admin.listed(accountID=token["accountID"], ended=True)
        assert (ended["kind"], ended["ended"] is None, ended["lastUsed"] is None) == ("token", False, False)


@pytest.mark.parametrize("kind", ["session", "registration", "ticket"])
async def test_one_thing_that_lives_by_a_credential_ends_alone(tmp_path: Path, kind: str) -> None:
    async with (
        house(tmp_path) as (runtime, root, vera),
        Admin(runtime, root) as admin,
        client(runtime, "vera", vera.token) as node,
        Admin(runtime, vera, "user") as own,
    ):
        url = (await node.allocate())[0]
        assert await node.code("create", REGISTRY, {"value": {"url": url, "status": "live"}}) == 200
        given = (await own.http.post("/authn/ticket", json={"stream": "/stream"})).json()
        ended = of_kind(await admin.listed(clientID="vera"), kind)

        assert (await own.call("revokeCredential", credentialID=ended["credentialID"])).status_code in (200, 204)

        again = await own.call("revokeCredential", credentialID=ended["credentialID"])
        assert (again.status_code, again.json()["type"]) == (404, "urn:skep:error:not-found")
        kinds = {one["kind"] for one in await own.listed()}
        assert kind not in kinds
        assert "token" in kinds
        match kind:
            case "session":
                assert await node.closed() == 1008
            case "registration":
                assert (await node.ask("read", REGISTRY, {"resource": url}))["body"]["code"] == 404
            case _:
                assert (await own.http.get(given["href"], headers={"authorization": ""})).status_code == 401


async def test_everything_of_an_account_ends_and_another_s_goes_on(tmp_path: Path) -> None:
    async with house(tmp_path) as (runtime, root, vera), Admin(runtime, root) as admin:
        assert (await admin.call("setClientPassword", clientID="vera", password=PASSWORD)).status_code in (200, 204)
        async with MqttClient(runtime.mqtt_address, "vera", PASSWORD, "v") as mqtt:
            found = await admin.listed(clientID="vera")
            assert of_kind(found, "session")["parent"] == of_kind(found, "password")["credentialID"]

            reply = await admin.call("revokeCredentials", clientID="vera")

            assert (reply.status_code, reply.json()) == (200, {"clientID": "vera", "ended": 2})
            with anyio.fail_after(WITHIN_S):
                await mqtt.lost.wait()
        assert await admin.listed(clientID="vera") == []
        for secret in (PASSWORD, vera.token):
            with pytest.raises(Refused):
                async with MqttClient(runtime.mqtt_address, "vera", secret, "v"):
                    pass


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({}, 400),
        ({"clientID": "vera", "accountID": "1-x"}, 400),
        ({"clientID": "nobody"}, 404),
        ({"accountID": "1-nobody"}, 404),
        ({"clientID": "vera", "all": True}, 400),
        ({"clientID": "x" * 65}, 400),
    ],
)
async def test_a_listing_names_one_account(tmp_path: Path, given: dict[str, Any], status: int) -> None:
    async with house(tmp_path) as (runtime, root, _), Admin(runtime, root) as admin:
        assert (await admin.call("listCredentials", **given)).status_code == status


async def test_nobody_sees_or_ends_what_is_another_account_s(tmp_path: Path) -> None:
    async with house(tmp_path) as (runtime, root, vera), Admin(runtime, vera, "user") as own:
        async with Admin(runtime, root) as admin:
            foreign = of_kind(await admin.listed(clientID="root"), "token")
        assert {one["clientID"] for one in await own.listed(ended=True)} == {"vera"}
        assert (await own.call("revokeCredential", credentialID=foreign["credentialID"])).status_code == 404
        async with Admin(runtime, vera) as not_admin:
            for method, given in (
                ("listCredentials", {"clientID": "root"}),
                ("revokeCredential", {"credentialID": foreign["credentialID"]}),
                ("revokeCredentials", {"clientID": "root"}),
            ):
                assert (await not_admin.call(method, **given)).status_code == 403
