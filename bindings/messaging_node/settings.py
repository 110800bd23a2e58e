"""The numbers and names of the messaging node, each limit with its reason."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What the node serves and what it bounds."""

    domain: str = "localhost"
    open: bool = False
    """Admit runtimes without an account, on loopback listeners only."""
    compatible: bool = False
    """No ownership of addresses, and learn addresses that were only seen as senders: what older clients rely on."""
    file: Path | None = None
    """Where sessions, named addresses and registrations are kept; None keeps them in memory."""

    resume_s: float = 120.0
    registration_s: int = 3_600
    max_addresses: int = 50_000
    max_addresses_per_request: int = 1_000
    max_subscriptions: int = 10_000
    max_outbox: int = 20_000
    max_outbox_bytes: int = 8_388_608
    """What a client that does not read may cost; a quarter of both is for one sending account."""
    max_registrations: int = 100_000
    max_registrations_of_account: int = 10_000
    max_registration_bytes_of_account: int = 16_777_216
    """So that no account fills the registry, or the disk, for all others; guests count as one."""
    max_answer_bytes: int = 1_048_576
    """A longer answer of the node's own is refused to whoever asked; clients commonly take no longer message."""
    max_sessions: int = 10_000
    max_away_of_account: int = 100
    """Sessions that wait for their clients; over it, the one that waits longest ends. Guests count as ten accounts."""
    max_frame_bytes: int = 262_144
    open_s: float = 10.0
    """A connection that opens no session is closed."""
    response_s: float = 15.0
    """How long a response may take; then whoever asked is told 408. A provisional one (100) begins it anew."""
    max_pending: int = 100_000
    """Requests whose responses are routed back; over it, the oldest are answered 408 early."""
    max_pending_of_session: int = 20_000
    """So that one sender cannot end the others' waits; bursts of ten thousand are usual."""
    max_mirrored: int = 10_000
    """Objects of hyperties that stand in the directory as Things."""
    pool: tuple[str, ...] = ()
    registry_url: str | None = None
    openid_issuer: str | None = None
    openid_audience: str | None = None
    """Whom the provider's identity tokens must be for; the domain if None."""

    @property
    def node(self) -> str:
        """The address of the node itself."""
        return f"domain://msg-node.{self.domain}"

    @property
    def things(self) -> str:
        """What the addresses of Things begin with."""
        return f"thing://{self.domain}/"
