"""What the configuration says to the core."""

from gateway.config import Config
from runtime.admission.quotas import QuotaLimits
from runtime.admission.rate import Budget
from runtime.requests.handler import RequestLimits
from runtime.requests.reachable_agents import OrderPolicy
from runtime.settings import Settings


def core_settings(config: Config) -> Settings:
    """The core's settings as `config` gives them."""
    limits, requests = config.limits, config.requests
    budget = Budget(
        messages_per_second=limits.messages_per_second,
        message_burst=limits.message_burst,
        bytes_per_second=limits.bytes_per_second,
        byte_burst=limits.byte_burst,
    )
    return Settings(
        budget=budget,
        role_budgets={
            role: budget.of_role(own.messages_per_second, own.bytes_per_second, least_bytes=config.http.max_batch_bytes)
            for role, own in limits.roles.items()
        },
        max_sessions_per_account=limits.max_sessions_per_account,
        max_subscriptions_per_session=limits.max_subscriptions_per_session,
        quotas=QuotaLimits(
            things=limits.max_things_per_account,
            description_bytes=limits.max_description_bytes_per_account,
            series=limits.max_series_per_account,
            undeclared=limits.max_undeclared_names_per_thing,
        ),
        requests=RequestLimits(
            expires_s=requests.expires_s,
            deadline_s=requests.deadline_s,
            max_waiting_per_agent=requests.max_waiting_per_agent,
            max_waiting_per_caller=requests.max_waiting_per_caller,
        ),
        rpc_deadline_s=requests.rpc_deadline_s,
        keep_requests_s=requests.keep_s,
        order=OrderPolicy(requests.order),
        resend_unchanged=limits.resend_unchanged,
        is_durable=config.history.durable,
    )
