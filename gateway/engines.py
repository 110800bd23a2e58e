"""The MQTT engine that a configuration asks for: our own, or embedded amqtt."""

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from bindings.mqtt.engines.native import NativeEngine, SessionStore
from bindings.mqtt.engines.seam import Engine, Limits, Listener
from gateway.config import Config, parse_listener
from things.errors import ConfigInvalid
from things.network import is_loopback

log = logging.getLogger(__name__)


def mqtt_engine(
    config: Config, tls: ssl.SSLContext | None, home: Path, steady: Callable[[], int], *, max_connections: int
) -> Engine:
    """The engine that the configuration names, not yet listening; sessions that it keeps end by the clock `steady`.
    `max_connections`: as many as the system carries. Raises ConfigInvalid."""
    mqtt = config.mqtt
    listeners: list[Listener] = []
    if mqtt.mqtt:
        host, port = parse_listener(mqtt.mqtt)
        if not is_loopback(host):
            if not config.security.insecure:
                raise ConfigInvalid(
                    f"plain MQTT listens on loopback addresses only, not on {host!r}; use mqtts, or insecure = true"
                )
            log.warning("plain MQTT beyond loopback: passwords and tokens can be read on the way")
        listeners.append(Listener(host=host, port=port, proxy_protocol=mqtt.proxy_protocol))
    if mqtt.mqtts:
        host, port = parse_listener(mqtt.mqtts)
        listeners.append(Listener(host=host, port=port, tls=tls, proxy_protocol=mqtt.proxy_protocol))
    limits = Limits(
        max_packet_bytes=mqtt.max_packet_bytes,
        max_connect_bytes=min(mqtt.max_connect_bytes, mqtt.max_packet_bytes),
        connect_timeout_s=mqtt.connect_timeout_s,
        max_unauthenticated_per_source=mqtt.max_unauthenticated_per_source,
        max_connections=max_connections,
        max_inflight=mqtt.max_inflight,
        max_queued=mqtt.max_queued,
        max_queued_bytes=mqtt.max_queued_bytes,
        max_unacknowledged=mqtt.max_unacknowledged,
        max_session_expiry_s=mqtt.max_session_expiry_s,
        max_subscriptions=config.limits.max_subscriptions_per_session,
        max_links_per_account=config.limits.max_sessions_per_account,
    )
    if mqtt.engine == "amqtt":
        from bindings.mqtt.engines.amqtt.engine import AmqttEngine  # only where it is wanted: it brings 15 MB

        return AmqttEngine(listeners, limits)
    return NativeEngine(listeners, limits, SessionStore(home / "mqtt-sessions.db", steady, limits))
