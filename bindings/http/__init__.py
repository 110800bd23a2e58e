"""HTTPS, server-sent events and long poll."""

from bindings.http.binding import HttpBinding
from bindings.http.config import HttpConfig
from bindings.http.context import Health

__all__ = ["Health", "HttpBinding", "HttpConfig"]
