"""Logins that commands keep on a user's machine: whom to trust, and a session that is renewed as long as it is used.

One folder for each gateway below `$XDG_CONFIG_HOME/skep/logins`, for its owner alone: `login.json` with the tokens and
`ca.pem`, the certificate that was pinned. No password is kept. A refresh token works once, so that commands running at
the same time take turns at it, by a lock of the system.
"""

import asyncio
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from things.errors import BadAddress, NotFound, Unauthenticated
from things.messages import JSONValue
from things.whole_files import write_whole

Refresh = Callable[[str], Awaitable[JSONValue]]
"""Hands in a refresh token; the runtime's answer. Raises Unauthenticated if the login has ended."""

EARLY_S = 60.0
"""Before its end a token is not used any more."""
LAST = "last"
"""The file that names the login that was made last."""


def folder() -> Path:
    """Where logins are kept."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "skep" / "logins"


@dataclass(frozen=True, slots=True)
class SavedLogin:
    """The login at one gateway."""

    path: Path

    @property
    def url(self) -> str:
        return str(self._read()["url"])

    @property
    def account(self) -> str:
        return str(self._read()["account"])

    @property
    def ca(self) -> Path | None:
        """The certificate that was pinned; None: the system's are trusted."""
        file = self.path / "ca.pem"
        return file if file.exists() else None

    async def token(self, refresh: Refresh, stale: str | None = None) -> str:
        """An access token that is still good for a while, and is not `stale`. Raises Unauthenticated."""
        async with self._locked():
            said = self._read()
            token = str(said["accessToken"])
            if token != stale and float(str(said["until"])) - EARLY_S > time.time():
                return token
            try:
                answer = await refresh(str(said["refreshToken"]))
            except Unauthenticated as error:
                raise Unauthenticated(f"your login at {said['url']} has ended: skep login {said['url']}") from error
            return self._write(str(said["url"]), answer)

    def forget(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path)

    def refresh_token(self) -> str:
        return str(self._read()["refreshToken"])

    def _write(self, url: str, answer: JSONValue) -> str:
        if not isinstance(answer, dict) or not isinstance(answer.get("accessToken"), str):
            raise Unauthenticated("the runtime answered without a token")
        until = time.time() + float(str(answer.get("expiresIn", 0)))
        said = {
            "url": url,
            "account": answer.get("clientID"),
            "accessToken": answer["accessToken"],
            "refreshToken": answer.get("refreshToken"),
            "until": until,
        }
        write_whole(self.path / "login.json", json.dumps(said).encode())
        return str(answer["accessToken"])

    def _read(self) -> Mapping[str, JSONValue]:
        try:
            said = json.loads((self.path / "login.json").read_bytes())
        except (OSError, ValueError) as error:
            raise Unauthenticated(f"the login kept in {self.path} cannot be read: {error}") from error
        return said if isinstance(said, dict) else {}

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        with (self.path / "lock").open("w") as lock:
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
            yield


def save(url: str, answer: JSONValue, ca: str | None) -> SavedLogin:
    """Keep a login: what the runtime answered, and the certificate (PEM) to trust from now on. Raises Unauthenticated,
    OSError."""
    login = SavedLogin(folder() / _name(url))
    login.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    (login.path / "ca.pem").unlink(missing_ok=True)
    if ca is not None:
        write_whole(login.path / "ca.pem", ca.encode())
    login._write(url, answer)
    write_whole(folder() / LAST, login.path.name.encode())
    return login


def saved(url: str | None = None) -> SavedLogin | None:
    """The login at a gateway, or the last one that was made; None if there is none."""
    if url is None:
        try:
            name = (folder() / LAST).read_text("utf-8")
        except OSError:
            return None
    else:
        name = _name(url)
    login = SavedLogin(folder() / name)
    return login if (login.path / "login.json").exists() else None


def existing(url: str | None = None) -> SavedLogin:
    """The same; raises NotFound."""
    login = saved(url)
    if login is None:
        raise NotFound(f"there is no login at {url}" if url else "there is no login")
    return login


def all_saved() -> list[SavedLogin]:
    """Every login, by name."""
    if not folder().is_dir():
        return []
    return [SavedLogin(each) for each in sorted(folder().iterdir()) if (each / "login.json").exists()]


def _name(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise BadAddress(f"{url!r} is not an address of a runtime; expected https://HOST:PORT")
    return re.sub(r"[^a-z0-9.-]", "_", f"{parts.hostname}-{parts.port or parts.scheme}{parts.path.rstrip('/')}".lower())
