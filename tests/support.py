"""A whole runtime in the test's own process: real stores, real sockets on free ports."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.app import Running, started
from gateway.config import Config
from things.identity import AccountType, Role

PUMP: dict[str, Any] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Pump",
    "properties": {
        "flow": {"type": "number", "minimum": 0, "maximum": 100, "unit": "l/min", "readOnly": True},
        "target": {"type": "number", "minimum": 0, "maximum": 100},
    },
    "events": {"alarm": {"data": {"type": "string"}}},
    "actions": {"setSpeed": {"input": {"type": "integer", "minimum": 0, "maximum": 10}, "output": {"type": "object"}}},
}
"""A Thing with one of everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account of the runtime under test; the token serves as MQTT password and as bearer."""

    name: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skep:
    """A runtime under test."""

    running: Running

    @property
    def http(self) -> str:
        assert self.running.http is not None
        return self.running.http

    @property
    def https(self) -> str:
        assert self.running.https is not None
        return self.running.https

    @property
    def mqtt(self) -> str:
        assert self.running.mqtt is not None
        return self.running.mqtt

    @property
    def mqtt_address(self) -> tuple[str, int]:
        """Host and port of the plain MQTT listener."""
        host, _, port = self.mqtt.removeprefix("mqtt://").rpartition(":")
        return host, int(port)

    @property
    def ca(self) -> Path:
        return self.running.certificates.ca_file

    async def add(self, name: str, type_: str = "consumer", role: str | None = None) -> Account:
        """Add an account with a long-lived token."""
        administration = self.running.stores.authenticator.administration
        _, token = await administration.add(name, AccountType(type_), role or _ROLES[type_], by="test")
        assert token is not None
        return Account(name=name, token=token)


_ROLES = {"agent": Role.AGENT, "service": Role.SERVICE, "consumer": Role.OPERATOR}


@asynccontextmanager
async def skep(home: Path, *, tls: bool = False, **sections: dict[str, Any]) -> AsyncIterator[Skep]:
    """Start a runtime on free ports; `sections` are tables of skep.toml. TLS listeners only where asked for."""
    free = "127.0.0.1:0"
    data: dict[str, Any] = {name: dict(section) for name, section in sections.items()}
    data["http"] = {"http": free, "https": free if tls else None, **data.get("http", {})}
    data["mqtt"] = {"mqtt": free, "mqtts": free if tls else None, **data.get("mqtt", {})}
    async with started(home, Config.of(data)) as running:
        yield Skep(running=running)
