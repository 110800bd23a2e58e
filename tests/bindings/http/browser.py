"""A headless Chromium driven over its debugging protocol; needs nothing but the browser itself."""

import asyncio
import base64
import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection, address: str = "") -> None:
        self._socket = socket
        self._address = address
        self._ids = itertools.count(1)
        self.complaints: list[str] = []
        """What the browser's console had to say: errors and violations of the page's policy."""

    async def command(self, method: str, **params: Any) -> dict[str, Any]:
        id_ = next(self._ids)
        await self._socket.send(json.dumps({"id": id_, "method": method, "params": params}))
        async with asyncio.timeout(20):
            while True:
                message = json.loads(await self._socket.recv())
                if message.get("id") == id_:
                    assert "error" not in message, message
                    result: dict[str, Any] = message["result"]
                    return result
                self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"].get("text", "") + " " + params["entry"].get("url", ""))

    @asynccontextmanager
    async def another(self, *, seen: bool = True) -> AsyncIterator["Page"]:
        """One more tab of the same browser and profile; one that is not `seen` lies behind the first."""
        options = {"newWindow": True} if seen else {"background": True}
        target = (await self.command("Target.createTarget", url="about:blank", **options))["targetId"]
        async with connect(f"ws://{self._address}/devtools/page/{target}", max_size=None) as socket:
            yield Page(socket, self._address)

    async def before_each_page(self, script: str) -> None:
        """Run a script in every page before its own."""
        await self.command("Page.enable")
        await self.command("Page.addScriptToEvaluateOnNewDocument", source=script)

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            await self.command(f"{domain}.enable")
        await self.command("Page.navigate", url=url)
        await self.until("location.protocol !== 'about:' && document.readyState === 'complete'")

    async def evaluate(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        result = await self.command("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, script: str, within_s: float = 10) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(within_s):
            while not await self.evaluate(f"Boolean({script})"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        await self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.command("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, file: Path) -> None:
        result = await self.command("Page.captureScreenshot", format="png")
        await asyncio.to_thread(file.write_bytes, base64.b64decode(result["data"]))


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Page]:
    """A browser with an empty profile in `folder`, and its tab."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank", stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            while True:
                line = (await process.stderr.readline()).decode()
                found = re.search(r"ws://(127\.0\.0\.1:\d+)/", line)
                if found or not line:
                    break
        assert found, "the browser did not start"
        draining = asyncio.create_task(process.stderr.read())
        async with connect(found.string[found.start() :].strip(), max_size=None) as control:
            tab = Page(control)
            targets = (await tab.command("Target.getTargets"))["targetInfos"]
            target = next(one["targetId"] for one in targets if one["type"] == "page")
        async with connect(f"ws://{found[1]}/devtools/page/{target}", max_size=None) as socket:
            yield Page(socket, found[1])
        draining.cancel()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
