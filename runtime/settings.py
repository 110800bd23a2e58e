"""The numbers that the core works with; the composition root makes them from the configuration."""

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.admission.quotas import QuotaLimits
from runtime.admission.rate import Budget
from runtime.requests.handler import RequestLimits
from runtime.requests.reachable_agents import OrderPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Bounds and defaults of one runtime; none has a default here, so that each is decided in one place."""

    budget: Budget
    """Messages and bytes of each account, over all bindings."""
    role_budgets: Mapping[str, Budget]
    """Instead of `budget`, by role."""
    max_sessions_per_account: int
    max_subscriptions_per_session: int
    quotas: QuotaLimits
    requests: RequestLimits
    rpc_deadline_s: float
    keep_requests_s: float
    """How long final requests can be asked for."""
    order: OrderPolicy
    """When the next request for a Thing may go out, unless its TD says."""
    resend_unchanged: bool
    """Whether observers get values that are equal to the last one."""
    is_durable: bool
    """Whether a reading is acknowledged when it is synced."""
