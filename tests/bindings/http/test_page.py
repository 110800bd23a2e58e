"""The live page in a real browser: log in, watch, invoke; hostile text stays text."""

import json
from pathlib import Path

import anyio
import pytest

from tests.bindings.http.browser import CHROMIUM, Page, browser
from tests.bindings.http.support import LAMP, PASSWORD, House, lamp_house

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium browser"),
]

HOSTILE = '"><img src=x onerror="window.stung=1"><script>window.stung=1</script>'


async def _log_in(page: Page, house: House) -> None:
    await page.open(f"{house.url}/")
    await page.until("!document.getElementById('door').hidden")
    await page.evaluate(
        "(() => { const form = document.getElementById('login');"
        f"form.elements.login.value = 'manager1'; form.elements.password.value = {json.dumps(PASSWORD)};"
        "form.requestSubmit(); })()"
    )
    await page.until("document.getElementById('live').classList.contains('on')")


async def test_page_shows_live_values_and_invokes_an_action(tmp_path: Path) -> None:
    async with (
        lamp_house(tmp_path / "home") as lamps,
        lamps.client("lights") as lights,
        browser(tmp_path / "profile") as page,
    ):
        for level in (10, 20):
            await lights.post("/agent/things/lamp/properties", json={"level": level})
        await _log_in(page, lamps)
        await page.until("document.querySelector('.things button')")
        await page.evaluate("location.hash = encodeURIComponent('dtw:lights:lamp')")
        await page.until("document.querySelector('.property .value').textContent === '20'")
        await page.until("document.querySelector('.property svg path')")
        await lights.post("/agent/things/lamp/properties", json={"level": 33})
        await page.until("document.querySelector('.property .value').textContent === '33'")

        async with anyio.create_task_group() as tasks:

            async def answer() -> None:
                reply = await lights.get("/agent/requests?wait=10")
                (request,) = reply.json()["items"]
                assert (request["name"], request["input"]) == ("fade", {"to": 5})
                body = {"state": "completed", "output": "faded"}
                await lights.post(f"/agent/status/{request['requestID']}", json=body)

            tasks.start_soon(answer)
            await page.evaluate(
                "(() => { const form = document.querySelector('.action form');"
                "form.querySelector('input').value = '5'; form.requestSubmit(); })()"
            )
            await page.until("document.querySelector('.chip.good')")
        assert await page.evaluate("document.querySelector('.outcome code').textContent") == "faded"
        await lights.post("/agent/things/lamp/events/overheated", json=99.5)
        await page.until("document.getElementById('events').textContent.includes('99.5')")
        assert page.complaints == []


async def test_page_asks_before_it_does_what_has_to_be_confirmed(tmp_path: Path) -> None:
    rule = {"id": "ask", "effect": "allow", "obligations": ["confirm"], "target": {"operation": "invoke_action"}}
    sure = {"id": "sure", "policies": [{"id": "all", "rules": [rule]}]}
    async with (
        lamp_house(tmp_path / "home") as lamps,
        lamps.client("lights") as lights,
        lamps.client("admin1") as admin,
        browser(tmp_path / "profile") as page,
    ):
        await admin.post("/rpc/dtw:authz:admin/putPolicySet", json={"policySet": sure})
        await _log_in(page, lamps)
        await page.evaluate("location.hash = encodeURIComponent('dtw:lights:lamp')")
        await page.until("document.querySelector('.property .value')")
        await lights.post("/agent/things/lamp/properties", json={"level": 33})
        await page.until("document.querySelector('.property .value').textContent === '33'")
        for answer, outcome in (("false", ".chip.bad"), ("true", ".outcome .chip:not(.bad)")):
            await page.evaluate(
                f"(() => {{ window.confirm = (text) => {{ window.asked = text; return {answer}; }};"
                "const form = document.querySelector('.action form');"
                "form.querySelector('input').value = '5'; form.requestSubmit(); })()"
            )
            await page.until(f"document.querySelector('{outcome}')")

        assert await page.evaluate("window.asked") == "This has to be confirmed. Do it?"
        async with lamps.client("manager1") as manager:
            (request,) = (await manager.get("/requests")).json()["items"]
        assert (request["name"], request["input"], request["state"]) == ("fade", {"to": 5}, "pending")


async def test_hostile_text_of_a_thing_stays_text(tmp_path: Path) -> None:
    td = json.loads(json.dumps(LAMP).replace('"Lamp"', json.dumps(HOSTILE)))
    td |= {"description": HOSTILE, "links": [{"rel": "icon", "href": "javascript:window.stung=1"}]}
    td["properties"]["mode"] |= {"title": HOSTILE, "unit": HOSTILE}
    td["actions"]["fade"] |= {"title": HOSTILE, "description": HOSTILE}
    td["events"]["touched"] |= {"title": HOSTILE}
    async with (
        lamp_house(tmp_path / "home") as lamps,
        lamps.client("lights") as lights,
        browser(tmp_path / "profile") as page,
    ):
        await lights.put("/agent/things/lamp", json=td)
        await lights.post("/agent/things/lamp/properties", json={"mode": HOSTILE})
        await _log_in(page, lamps)
        await page.evaluate("location.hash = encodeURIComponent('dtw:lights:lamp')")
        await page.until("document.querySelector('.thing h1')")
        await lights.post("/agent/things/lamp/events/touched", json=HOSTILE)
        await page.until("document.querySelector('#events strong')")

        assert await page.evaluate("document.querySelector('.thing h1').textContent") == HOSTILE
        assert await page.evaluate("window.stung === undefined")
        assert await page.evaluate("document.querySelectorAll('.thing img, .thing script').length") == 0
        assert page.complaints == []


async def test_logging_out_forgets_everything(tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home") as lamps, browser(tmp_path / "profile") as page:
        await _log_in(page, lamps)
        assert await page.evaluate("document.cookie") == ""
        await page.evaluate("document.getElementById('logout').click()")
        await page.until("!document.getElementById('door').hidden")
        status = await page.evaluate("fetch('/authn/profile').then((reply) => reply.status)")
        assert status == 401
