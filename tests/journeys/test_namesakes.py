"""An account that was removed leaves nothing to another that gets its name, over restarts and restored backups too."""

from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from authz.documents import RuleDocument
from authz.policy.sets import set_document
from gateway.backup.places import source_of
from gateway.backup.restoring import restore
from gateway.backup.taking import take
from gateway.config import Config
from tests.bindings.messaging_node.support import ALLOCATION, REGISTRY, Client, client, connected
from tests.support import PUMP, Account, Skep, skep
from things.identity import AccountType, Principal, Role
from things.parsing import parsed
from things.td import ThingDescription

pytestmark = pytest.mark.anyio

ROOT = Principal(account="root", type=AccountType.CONSUMER, role=Role.ADMIN)
NAMED = "comm://localhost/otto-s-room"
THING = "dtw:works:pump-1"
KEEP = {"resume_s": 3_600}


async def furnished(runtime: Skep) -> Account:
    """Otto may invoke by a rule and write by a policy, has named an address, registered it and gone away."""
    stores = runtime.running.stores
    await runtime.add("works", "agent")
    await stores.twin.directory.put(THING, ThingDescription.of(PUMP, agent=True), agent="works")
    otto = await runtime.add("otto", role="viewer")
    rule = {"id": "r", "effect": "allow", "thing": "dtw:works:*", "accounts": ["otto"], "kind": "action"}
    await stores.authorizer.put_rule(parsed(RuleDocument, rule), ROOT)
    allowed = {"id": "w", "effect": "allow", "target": {"sender": "otto", "operation": "write_property"}}
    await stores.authorizer.put_policy_set(set_document({"id": "w", "policies": [{"id": "p", "rules": [allowed]}]}))
    async with client(runtime, "otto", otto.token) as one:
        assert await one.code("create", ALLOCATION, {"value": {"allocated": [NAMED]}}) == 200
        assert await registered(one, name="room") == 200
    assert [await asked(runtime, otto, *what) for what in ASKED] == [201, 204]
    return otto


async def registered(one: Client, **members: Any) -> int:
    return await one.code("create", REGISTRY, {"value": {"url": NAMED, "status": "live"} | members})


ASKED = (("POST", "actions/setSpeed", 3), ("PUT", "properties/target", 5))


async def asked(runtime: Skep, account: Account, method: str, path: str, value: int) -> int:
    headers = {"authorization": f"Bearer {account.token}", "prefer": "wait=0"}
    async with httpx.AsyncClient(base_url=runtime.http, headers=headers, trust_env=False) as http:
        code = (await http.request(method, f"/things/{THING}/{path}", json=value)).status_code
    return {202: 204}.get(code, code)


async def has_nothing(runtime: Skep, otto: Account) -> None:
    """What another otto finds: no right, no address, no registration, no session, no request."""
    assert [await asked(runtime, otto, *what) for what in ASKED] == [403, 403]
    vera = await runtime.add("vera")
    async with client(runtime, "otto", otto.token) as one, client(runtime, "vera", vera.token) as other:
        assert (await other.ask("read", REGISTRY, {"resource": NAMED}))["body"]["code"] == 404
        assert await other.code("create", ALLOCATION, {"value": {"allocated": [NAMED]}}) == 200
        assert await registered(one) == 403
    headers = {"authorization": f"Bearer {otto.token}"}
    async with httpx.AsyncClient(base_url=runtime.http, headers=headers, trust_env=False) as http:
        assert (await http.get("/requests")).json()["items"] == []
        assert (await http.get("/inbox?after=0")).json()["items"] == []


async def remade(runtime: Skep) -> Account:
    await runtime.running.stores.authenticator.administration.remove("otto", by="test")
    return await runtime.add("otto", role="viewer")


async def test_a_namesake_has_nothing_at_once(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node=KEEP) as runtime:
        await furnished(runtime)
        await has_nothing(runtime, await remade(runtime))


@pytest.mark.parametrize("made", ["before", "after"])
async def test_a_namesake_has_nothing_after_a_restart(tmp_path: Path, made: str) -> None:
    async with skep(tmp_path, messaging_node=KEEP) as runtime:
        await furnished(runtime)
        if made == "before":
            other = await remade(runtime)
        else:
            await runtime.running.stores.authenticator.administration.remove("otto", by="test")
    async with skep(tmp_path, messaging_node=KEEP) as runtime:
        if made == "after":
            other = await runtime.add("otto", role="viewer")
        await has_nothing(runtime, other)


async def test_a_namesake_has_nothing_where_a_backup_is_restored(tmp_path: Path) -> None:
    home, to, new = tmp_path / "home", tmp_path / "site.tar", tmp_path / "new"
    async with skep(home, messaging_node=KEEP) as runtime:
        await furnished(runtime)
        other = await remade(runtime)
        await anyio.to_thread.run_sync(lambda: take(home, to, config=Config()))
    restore(source_of(to, None), new)

    async with skep(new, messaging_node=KEEP) as runtime:
        await has_nothing(runtime, other)


async def test_who_stays_keeps_all_of_it_over_a_restart(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node=KEEP) as runtime:
        otto = await furnished(runtime)
    async with skep(tmp_path, messaging_node=KEEP) as runtime:
        assert [await asked(runtime, otto, *what) for what in ASKED] == [201, 204]
        async with client(runtime, "otto", otto.token) as one:
            assert (await one.ask("read", REGISTRY, {"resource": NAMED}))["body"]["code"] in (200, 408)
            assert await registered(one) == 200


async def test_a_session_that_waits_for_its_client_ends_with_the_account(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node=KEEP) as runtime:
        otto = await runtime.add("otto")
        async with client(runtime, "otto", otto.token) as one:
            session = one.session
        other = await remade(runtime)
        async with connected(runtime, "hyperty-runtime://localhost/otto", other.token) as late:
            assert (await late.reopen(session))["body"]["code"] == 401
