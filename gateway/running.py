"""A started runtime as those see it who run or embed it: its parts, and the addresses under which others reach it."""

import os
from dataclasses import dataclass

from authn.certificates import Certificates
from gateway.sealing import Sealing
from gateway.stores import Stores
from runtime.core import Runtime
from things.places import Places

MQTT_PATH = "/mqtt"
"""Where MQTT is spoken over WebSocket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A started runtime and the addresses under which others reach it (None = off); they follow its names."""

    stores: Stores
    runtime: Runtime
    sealing: Sealing
    certificates: Certificates
    places: Places

    @property
    def http(self) -> str | None:
        return self.places.urls().http

    @property
    def https(self) -> str | None:
        return self.places.urls().https

    @property
    def mqtt(self) -> str | None:
        return self.places.urls().mqtt

    @property
    def mqtts(self) -> str | None:
        return self.places.urls().mqtts

    @property
    def mqtt_over_websocket(self) -> str | None:
        """The address at the HTTP listeners; the engine amqtt has none."""
        base = self.https or self.http
        native = self.stores.config.mqtt.engine == "native"
        return f"ws{base.removeprefix('http')}{MQTT_PATH}" if base and native else None

    def ready_document(self) -> dict[str, str | int | None]:
        """What the ready file says: process id, addresses as URLs, and the file of the CA that signed the server."""
        return {
            "pid": os.getpid(),
            "https": self.https,
            "http": self.http,
            "mqtt": self.mqtt,
            "mqtts": self.mqtts,
            "mqttws": self.mqtt_over_websocket,
            "ca": str(self.certificates.ca_file) if self.https or self.mqtts else None,
        }
