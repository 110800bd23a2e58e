"""Addresses of runtimes as users give them."""

from urllib.parse import SplitResult, urlsplit

from things.errors import BadAddress


def split_url(url: str) -> tuple[SplitResult, int | None]:
    """The parts of `url` and its port; raises BadAddress for what is no URL at all."""
    try:
        parts = urlsplit(url)
        return parts, parts.port
    except ValueError as error:
        raise BadAddress(f"{url!r} is not an address: {error}") from error
