"""The native MQTT server, 3.1.1 and 5: a codec that stands alone, connections, sessions, and the engine over them."""

from bindings.mqtt.engines.native.engine import NativeEngine
from bindings.mqtt.engines.native.store import SessionStore
from bindings.mqtt.engines.native.websocket import serve_websocket

__all__ = ["NativeEngine", "SessionStore", "serve_websocket"]
