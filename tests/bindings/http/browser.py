"""A headless Chromium driven over its debugging protocol; needs nothing but the browser itself.

Its process serves all tests of a session, which saves its start; each test has an empty profile of its own.
"""

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WITHIN_S = 60.0
"""Ends a wait that has failed; it may be long, as it takes no time while all is well."""

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",  # containers often have little of it
    "--remote-debugging-port=0",
)


@contextmanager
def chromium(folder: Path) -> Iterator[str]:
    """A browser's process, with its files in `folder`; where its debugging protocol is spoken."""
    assert CHROMIUM is not None
    profile, log = folder / "profile", folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"], stdout=output, stderr=output
        )
    try:
        end = time.monotonic() + WITHIN_S
        while len(told := _lines(profile / "DevToolsActivePort")) < 2:
            assert process.poll() is None, log.read_text(errors="replace")[-2_000:]
            assert time.monotonic() < end, "the browser did not start"
            time.sleep(0.02)
        yield f"ws://127.0.0.1:{told[0]}{told[1]}"
    finally:
        process.kill()
        process.wait()


def _lines(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


@asynccontextmanager
async def browser(address: str) -> AsyncIterator["Page"]:
    """A tab with an empty profile of its own, in the browser whose debugging protocol is spoken at `address`."""
    async with connect(address, max_size=None) as socket:
        control = Target(socket)
        context = (await control.command("Target.createBrowserContext"))["browserContextId"]

        @asynccontextmanager
        async def opened(**options: Any) -> AsyncIterator[Page]:
            made = await control.command("Target.createTarget", url="about:blank", browserContextId=context, **options)
            host = address.partition("/devtools/")[0]
            async with connect(f"{host}/devtools/page/{made['targetId']}", max_size=None) as tab:
                yield Page(tab, opened)

        try:
            async with opened(newWindow=True) as page:
                yield page
        finally:
            await control.command("Target.disposeBrowserContext", browserContextId=context)


class Target:
    """What takes commands: the browser itself, or one tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.complaints: list[str] = []
        """What the browser's console had to say: errors and violations of the page's policy."""

    async def command(self, method: str, **params: Any) -> dict[str, Any]:
        id_ = next(self._ids)
        await self._socket.send(json.dumps({"id": id_, "method": method, "params": params}))
        async with asyncio.timeout(WITHIN_S):
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


class Page(Target):
    """One tab."""

    def __init__(self, socket: ClientConnection, opened: Callable[..., AbstractAsyncContextManager["Page"]]) -> None:
        super().__init__(socket)
        self._opened = opened

    def another(self, *, seen: bool = True) -> AbstractAsyncContextManager["Page"]:
        """One more tab of the same profile; one that is not `seen` lies behind the first."""
        return self._opened(**({"newWindow": True} if seen else {"background": True}))

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

    async def until(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + WITHIN_S
        while not await self.evaluate(f"Boolean({script})"):
            assert time.monotonic() < end, f"never came true: {script}; the console says {self.complaints}"
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
