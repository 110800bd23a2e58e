"""Who connects: credentials from CONNECT and AUTH become a principal, and a will is checked before it is kept."""

from bindings.mqtt.engines.seam import (
    Hello,
    Publish,
)
from bindings.mqtt.topics import (
    PublishBatch,
    PublishEvent,
    PublishProperties,
    PublishProperty,
    PublishTD,
    ReportStatus,
    parse_topic,
)
from runtime.ports import Authenticator
from things.errors import Forbidden, Unauthenticated
from things.identity import AccountType, Principal
from things.jsontext import decode

TOKEN_METHOD = "token"
"""The one MQTT 5 authentication method: the data is an access or long-lived token."""

_AGENT_TOPICS = (PublishEvent, PublishProperty, PublishProperties, PublishTD, PublishBatch, ReportStatus)


async def authenticated(hello: Hello, authenticator: Authenticator) -> Principal:
    """The principal of a CONNECT. Raises Unauthenticated, RateLimited, Forbidden."""
    if hello.auth_method is not None:
        if hello.auth_method != TOKEN_METHOD or hello.auth_data is None:
            raise Unauthenticated
        principal = authenticator.verify(_utf8(hello.auth_data))
    elif hello.password is not None:
        return await authenticator.login(hello.user_name or "", _utf8(hello.password), source=hello.source)
    elif hello.certificate is not None:
        principal = await authenticator.by_certificate(hello.certificate)
    else:
        raise Unauthenticated
    if hello.user_name not in (None, principal.account):
        raise Unauthenticated
    return principal


def by_token(data: bytes, authenticator: Authenticator) -> Principal:
    """The principal of the data of an AUTH packet. Raises Unauthenticated, TokenInvalid, TokenExpired."""
    return authenticator.verify(_utf8(data))


def check_will(will: Publish, principal: Principal) -> None:
    """Raise SkepError for a will that would be refused when it fires: its topic, payload or rights."""
    topic = parse_topic(will.topic, principal.account)
    if isinstance(topic, _AGENT_TOPICS) and principal.type is AccountType.CONSUMER:
        raise Forbidden("a consumer has no Things to publish for")
    # A property is nothing without its value.
    if will.payload or isinstance(topic, PublishProperty):
        decode(will.payload)


def _utf8(secret: bytes) -> str:
    try:
        return secret.decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        raise Unauthenticated from error
