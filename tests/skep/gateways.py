"""The gateway of `skep.testing` over both MQTT engines."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bindings.mqtt.engines.amqtt.engine import AmqttEngine
from bindings.mqtt.engines.native import NativeEngine
from bindings.mqtt.engines.seam import Engine, Limits, Listener
from skep.testing import Gateway

ENGINES: dict[str, Callable[[list[Listener], Limits], Engine]] = {"amqtt": AmqttEngine, "native": NativeEngine}


@asynccontextmanager
async def served(engine: str, gateway: Gateway, *, port: int = 0) -> AsyncIterator[int]:
    """Serve it by one of the engines, on loopback; the port."""
    gateway.engine = ENGINES[engine]
    await gateway.start(port)
    try:
        yield int(gateway.url.rpartition(":")[2])
    finally:
        await gateway.stop()
