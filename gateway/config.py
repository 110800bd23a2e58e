"""The configuration: `{home}/skep.toml` and the environment, every limit in one place with its reason.

Unknown keys are refused with the nearest known one. `Config.load` is the only reader; command line options are laid
over it by `Config.with_listeners`.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gateway import config_sources
from gateway.config_sources import Settings
from things.errors import ConfigInvalid, Problem
from things.hosts import checked_names, checked_public_url
from things.network import Network, checked_networks
from things.suggestions import did_you_mean

FILE_NAME = "skep.toml"


class Section(BaseModel):
    """One table of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Gateway(Section):
    """What the gateway is called, beside what it finds by itself."""

    names: tuple[str, ...] = Field(
        (), description="further host names and addresses under which it is reached; the first is told to others first"
    )
    public_url: str | None = Field(
        None, description="where a reverse proxy shows the HTTP interface, https://HOST or https://HOST/PATH"
    )

    @field_validator("names")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return checked_names(names)
        except ConfigInvalid as error:
            raise ValueError(error.detail) from error

    @field_validator("public_url")
    @classmethod
    def _is_public_url(cls, url: str | None) -> str | None:
        try:
            return checked_public_url(url) if url else None
        except ConfigInvalid as error:
            raise ValueError(error.detail) from error


class HTTP(Section):
    """Listeners of the HTTP binding."""

    http: str | None = Field("127.0.0.1:8080", description="plain listener HOST:PORT, loopback only; empty = off")
    https: str | None = Field("127.0.0.1:8443", description="TLS listener HOST:PORT; empty = off")
    allowed_origins: tuple[str, ...] = Field(
        (), description="origins of other sites whose pages may use a cookie or WebSocket here"
    )
    trusted_proxies: tuple[str, ...] = Field(
        (), description="addresses and networks of proxies whose X-Forwarded-For, -Proto and -Host are believed"
    )
    max_body_bytes: int = Field(262_144, ge=1_024, description="one message; larger requests get 413")
    max_batch_bytes: int = Field(4_194_304, ge=1_024, description="a batch of up to 5,000 messages")
    poll_interval_s: float = Field(
        30.0, gt=0, description="an agent that asks for requests less often counts as disconnected"
    )
    max_streams_per_account: int = Field(50, ge=1, description="open event streams; each holds a bounded queue")

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        try:
            checked_networks(networks)
        except ConfigInvalid as error:
            raise ValueError(error.detail) from error
        return networks

    @property
    def proxies(self) -> tuple[Network, ...]:
        return checked_networks(self.trusted_proxies)


class MQTT(Section):
    """Listeners and engine of the MQTT binding."""

    engine: Literal["native", "amqtt"] = Field("native", description="the wire engine; amqtt speaks 3.1.1 only")
    mqtt: str | None = Field("127.0.0.1:1883", description="plain listener HOST:PORT, loopback only; empty = off")
    mqtts: str | None = Field("127.0.0.1:8883", description="TLS listener HOST:PORT; empty = off")
    max_packet_bytes: int = Field(263_168, ge=1_024, description="a message of 256 KiB and its headers")
    max_connect_bytes: int = Field(16_384, ge=512, description="a CONNECT with its token and will")
    connect_timeout_s: float = Field(5.0, gt=0, description="a socket that sends no CONNECT is closed")
    max_unauthenticated_per_source: int = Field(
        500, ge=1, description="connections of one address before login; the oldest makes room for the next"
    )
    max_connections: int = Field(10_000, ge=1, description="files the process may hold open")
    max_inflight: int = Field(100, ge=1, le=65_535, description="unacknowledged deliveries to one client")
    max_queued: int = Field(1_000, ge=1, description="deliveries waiting for one slow client")
    max_queued_bytes: int = Field(4_194_304, ge=4_096, description="bytes waiting for one slow client")
    max_unacknowledged: int = Field(200, ge=1, description="publishes of one client read ahead of their commit")
    max_session_expiry_s: int = Field(604_800, ge=0, description="how long a persistent session outlives its client")
    max_missed_s: float = Field(
        604_800.0,
        gt=0,
        description="a client that comes back is given what it missed of this time, while it is hot",
    )
    max_missed_bytes: int = Field(67_108_864, ge=4_096, description="and so much of it, the newest")
    proxy_protocol: bool = Field(False, description="expect a PROXY header from a load balancer")


class Requests(Section):
    """Queueing of actions and property writes."""

    expires_s: float = Field(3_600.0, ge=0, description="how long a request waits for an absent agent by default")
    deadline_s: float = Field(60.0, gt=0, description="how long an agent may take from delivery or its last word")
    rpc_deadline_s: float = Field(60.0, gt=0, description="the same for RPC, which is never queued")
    keep_s: float = Field(30 * 86_400.0, gt=0, description="how long final requests can be asked for")
    max_waiting_per_agent: int = Field(100_000, ge=1, description="requests queued for one agent")
    max_waiting_per_caller: int = Field(100_000, ge=1, description="requests queued by one account")
    order: Literal["burst", "until-ack", "until-response"] = Field(
        "burst", description="when the next request for a Thing may go out, unless its TD says (skep:order)"
    )


class RoleLimits(Section):
    """The budget of every account of one role, where it is another."""

    messages_per_second: float | None = Field(None, gt=0, description="instead of limits.messages_per_second")
    bytes_per_second: float | None = Field(None, gt=0, description="instead of limits.bytes_per_second")


class LimitsSection(Section):
    """Bounds of messages and sessions."""

    messages_per_second: float = Field(5_000.0, gt=0, description="per account, over all bindings")
    message_burst: float = Field(10_000.0, ge=1, description="what may be exceeded for a moment: a batch, a reconnect")
    bytes_per_second: float = Field(33_554_432.0, gt=0, description="of payloads, per account, over all bindings")
    byte_burst: float = Field(
        67_108_864.0, ge=4_194_304, description="what may be exceeded for a moment: a batch at least"
    )
    roles: dict[str, RoleLimits] = Field({}, description="other budgets of a role, by `[limits.roles.NAME]` tables")
    max_sessions_per_account: int = Field(100, ge=1, description="open connections and streams of one account")
    max_subscriptions_per_session: int = Field(1_000, ge=1, description="each costs memory and a look-up entry")
    max_things_per_account: int = Field(10_000, ge=1, description="Things of one account; each costs some 10 KiB")
    max_description_bytes_per_account: int = Field(
        67_108_864, ge=262_144, description="of all Thing Descriptions of one account; they are kept in memory"
    )
    max_series_per_account: int = Field(
        100_000, ge=1, description="properties and events of one account with a value; each costs some 2 KiB"
    )
    max_undeclared_names_per_thing: int = Field(
        1_000, ge=0, description="of values that a Thing's description does not declare"
    )
    resend_unchanged: bool = Field(True, description="tell observers of values that are equal to the last one")


class HistoryBudget(Section):
    """What is kept of the readings of one Thing, one affordance, or one affordance of one Thing."""

    thing: str | None = Field(None, description="twin id; any Thing if empty")
    name: str | None = Field(None, description="property or event; any if empty")
    days: float | None = Field(None, ge=1, description="readings older than this go")
    bytes: int | None = Field(None, gt=0, description="the oldest readings above this size go")

    @model_validator(mode="after")
    def _says_something(self) -> "HistoryBudget":
        if self.thing is None and self.name is None:
            raise ValueError("a budget needs a thing or a name; for everything there are keep_days and keep_bytes")
        if self.days is None and self.bytes is None:
            raise ValueError("a budget needs days or bytes")
        return self


class History(Section):
    """The hot history and the lake."""

    durable: bool = Field(
        True, description="acknowledge when the row is synced; false: when accepted in memory, and sync now and then"
    )
    commit_wait_s: float = Field(
        0.012,
        ge=0,
        le=1,
        description="so long a reading waits for others to share a commit, where any come; 0 = never",
    )
    seal_interval_s: float = Field(3_600.0, gt=0, description="rows are sealed to Parquet this often")
    seal_rows: int = Field(1_000_000, ge=1, description="or when this many wait")
    lake: str | None = Field(None, description="where sealed files go: a path or filesystem URL; {home}/lake if empty")
    keep_hot_days: float = Field(7.0, gt=0, description="sealed days stay queryable without the lake this long")
    keep_hot_bytes: int | None = Field(None, gt=0, description="or until hot files are larger than this; empty = any")
    keep_days: float | None = Field(None, ge=1, description="drop readings older than this; empty = keep")
    keep_bytes: int | None = Field(None, gt=0, description="drop the oldest readings above this size; empty = keep")
    budgets: tuple[HistoryBudget, ...] = Field(
        (), description="other limits for single Things and affordances, by `[[history.budgets]]` tables"
    )
    retain_interval_s: float = Field(21_600.0, gt=0, description="how often sealed readings beyond their limits go")
    upkeep_interval_s: float = Field(3_600.0, gt=0, description="how often the lake is compacted and swept")
    delta: bool = Field(True, description="the tables of the lake are Delta tables too, for other engines to read")
    grace_s: float = Field(
        86_400.0, ge=0, description="merged and dropped files stay this long for readers that know them"
    )


class Backup(Section):
    """Backups that the gateway takes by itself."""

    to: str | None = Field(None, description="a folder for backups of this gateway, best on another disk; empty = none")
    every_s: float = Field(86_400.0, ge=60, description="how often one is taken")
    keep: int = Field(7, ge=1, description="so many stay, the newest")
    keys: bool = Field(True, description="with signing keys, certificates and tokens of local agents")
    lake: bool = Field(False, description="with the lake that `history.lake` names; one in the folder always is")
    passphrase_file: str | None = Field(
        None, description="a file (0600) whose first line encrypts the backups; not encrypted if empty"
    )
    bytes_per_second: float | None = Field(
        33_554_432.0, ge=65_536, description="read from the disk at most, so that others keep their share; empty = any"
    )

    @model_validator(mode="after")
    def _is_folder(self) -> "Backup":
        if self.to is not None and self.to.endswith((".tar", ".tar.gz", ".tgz")):
            raise ValueError("backups by schedule go to a folder, which holds several")
        return self


class Security(Section):
    """Tokens, logins and transport."""

    access_token_s: int = Field(3_600, ge=60, le=3_600, description="an access token's life; at most an hour")
    refresh_token_s: int = Field(30 * 86_400, ge=3_600, description="a login ends after this much silence")
    login_attempts_per_minute: int = Field(10, ge=1, description="per account and per source, released by time")
    insecure: bool = Field(False, description="allow plain listeners beyond loopback; logged at every start")
    certificate: str | None = Field(None, description="own server certificate (PEM); made by the local CA if empty")
    certificate_key: str | None = Field(None, description="its key (PEM, 0600, no passphrase)")
    policies: str | None = Field(None, description="folder of policy files; {home}/policies if empty")


class AuditLog(Section):
    """Who is told, outside the data folder, how far the audit log has come."""

    witness: str | None = Field(
        None, description="a file on another disk or share that gets an anchor of the log; none if empty"
    )
    syslog: str | None = Field(None, description="the same for a syslog: /dev/log, or HOST:PORT by UDP; none if empty")
    anchor_s: float = Field(60.0, ge=1, description="how often, while there is something new")


class MessagingNode(Section):
    """The messaging node."""

    domain: str = Field("localhost", description="the domain in the node's addresses")
    open: bool = Field(False, description="admit runtimes without an account, on loopback listeners only")
    compatible: bool = Field(
        False,
        description="no ownership of addresses, and learn those only seen as senders: for clients that rely on it",
    )
    resume_s: float = Field(120.0, ge=0, description="how long a session outlives its connection")
    response_s: float = Field(15.0, gt=0, description="how long a response may take; then whoever asked is told 408")
    registration_s: int = Field(3_600, ge=1, description="longest life of a registration without keep-alive")
    max_addresses: int = Field(50_000, ge=1, description="allocated to one session")
    max_addresses_per_request: int = Field(1_000, ge=1, description="allocated, released or subscribed by one message")
    max_subscriptions: int = Field(10_000, ge=1, description="addresses one session listens to")
    max_outbox: int = Field(20_000, ge=1, description="messages waiting for one session; a quarter for one sender")
    max_outbox_bytes: int = Field(8_388_608, ge=65_536, description="bytes waiting for one session")
    max_registrations: int = Field(100_000, ge=1, description="entries of the domain registry")
    max_registrations_of_account: int = Field(
        10_000, ge=1, description="entries of one account; guests count as one account"
    )
    max_registration_bytes_of_account: int = Field(
        16_777_216, ge=65_536, description="bytes of all entries of one account"
    )
    pool: tuple[str, ...] = Field((), description="foreign addresses lent to clients that have none, by scheme")
    registry_url: str | None = Field(None, description="a domain registry over HTTP instead of the node's own")
    openid_issuer: str | None = Field(None, description="OpenID provider whose tokens domain://idm.{domain} looks into")
    openid_audience: str | None = Field(None, description="whom its identity tokens must be for; the domain if empty")


class Discovery(Section):
    """Announcement on the local network."""

    mdns: bool = Field(False, description="announce the directory on the local network (DNS-SD `_wot._tcp`)")


class Log(Section):
    """What is logged."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level that is written")
    json_lines: bool = Field(False, description="one JSON object a line instead of text")


class Config(Section):
    """The whole file."""

    version: Literal[1] = Field(1, description="of this file's format")
    database_url: str | None = Field(None, description="postgresql+psycopg://… for accounts and twin; SQLite if empty")
    gateway: Gateway = Gateway()
    http: HTTP = HTTP()
    mqtt: MQTT = MQTT()
    requests: Requests = Requests()
    limits: LimitsSection = LimitsSection()
    history: History = History()
    backup: Backup = Backup()
    security: Security = Security()
    audit: AuditLog = AuditLog()
    messaging_node: MessagingNode = MessagingNode()
    discovery: Discovery = Discovery()
    log: Log = Log()

    @staticmethod
    def load(home: Path, environment: Mapping[str, str] | None = None) -> "Config":
        """Read `{home}/skep.toml`, or the defaults where there is none, and what the environment (of this process, if
        none is given) lays over it. Raises ConfigInvalid with every problem."""
        return Config.of(settings(home, environment))

    @staticmethod
    def of(said: Settings | Mapping[str, Any]) -> "Config":
        """The configuration that `said` asks for; raises ConfigInvalid with every problem, and where it is."""
        settings = said if isinstance(said, Settings) else Settings(dict(said))
        try:
            return Config.model_validate(settings.data)
        except ValidationError as error:
            problems = [_problem(item, settings.origins) for item in error.errors()]
            raise ConfigInvalid("; ".join(f"{p.pointer[1:]}: {p.detail}" for p in problems), problems) from error

    def changed(self) -> dict[str, Any]:
        """What is not as it is by default, by dotted key."""
        return dict(_flat(self.model_dump(mode="json", exclude_defaults=True)))

    def with_listeners(
        self,
        *,
        http: str | None = None,
        https: str | None = None,
        mqtt: str | None = None,
        mqtts: str | None = None,
    ) -> "Config":
        """Lay listeners from the command line over the file's; None leaves one as it is, `off` switches it off."""

        def layered(given: str | None, standing: str | None) -> str | None:
            return standing if given is None else None if given in ("off", "") else given

        return self.model_copy(
            update={
                "http": self.http.model_copy(
                    update={"http": layered(http, self.http.http), "https": layered(https, self.http.https)}
                ),
                "mqtt": self.mqtt.model_copy(
                    update={"mqtt": layered(mqtt, self.mqtt.mqtt), "mqtts": layered(mqtts, self.mqtt.mqtts)}
                ),
            }
        )


def settings(home: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """What file and environment say, before it is checked as a whole. Raises ConfigInvalid."""
    return config_sources.read(home / FILE_NAME, os.environ if environment is None else environment, kind_of)


def kind_of(path: tuple[str, ...]) -> str | None:
    """What the key at `path` takes (`config_sources.Kind`)."""
    section: Any = Config
    for step in path[:-1]:
        section = _annotation(section, step)
    annotation = _annotation(section, path[-1])
    if annotation is None:
        return None
    if get_origin(annotation) is tuple:
        return "texts" if get_args(annotation)[0] is str else "other"
    options = get_args(annotation) or (annotation,)
    return "text" if str in options or any(isinstance(each, str) for each in options) else "other"


def _annotation(section: Any, name: str) -> Any:
    """The type of a key of a section, or of any member of a table by name; None if there is no such key."""
    if get_origin(section) is dict:
        return get_args(section)[1]
    field = section.model_fields.get(name) if isinstance(section, type) and issubclass(section, Section) else None
    return field.annotation if field is not None else None


def parse_listener(text: str) -> tuple[str, int]:
    """HOST:PORT (or [IPv6]:PORT); raises ConfigInvalid."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigInvalid(f"{text!r} is not HOST:PORT")
    return host, int(port)


def keys(section: type[Section] = Config, prefix: str = "") -> list[tuple[str, str]]:
    """Every key of the file with its description, dotted; for the documentation."""
    found: list[tuple[str, str]] = []
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found += keys(field.annotation, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", field.description or ""))
    return found


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _problem(item: Any, origins: Mapping[str, str]) -> Problem:
    where = [str(step) for step in item["loc"]]
    detail = item["msg"]
    origin = origins.get(".".join(where), FILE_NAME)
    if item["type"] == "extra_forbidden":
        known = [key.rpartition(".")[2] for key, _ in keys() if key.rpartition(".")[0] == ".".join(where[:-1])]
        known += [name for name in Config.model_fields if len(where) == 1]
        detail = f"unknown key{did_you_mean(where[-1], known)}"
    if origin != FILE_NAME:
        detail = f"{detail} ({origin})"
    return Problem(pointer="/" + "/".join(where), detail=detail, code="config-invalid")
