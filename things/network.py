"""Addresses of hosts."""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from things.errors import ConfigInvalid

Network = IPv4Network | IPv6Network


def is_loopback(host: str) -> bool:
    """Whether a host as written in configuration, or a peer's address, is this machine only."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_link_local(host: str) -> bool:
    """Whether an address is only good together with an interface of its user."""
    return ip_address(host.partition("%")[0]).is_link_local


def checked_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Configured addresses and networks (`192.0.2.7`, `10.0.0.0/8`, `fd00::/8`); raises ConfigInvalid."""
    found = []
    for text in texts:
        try:
            network = ip_network(text)
        except ValueError as error:
            raise ConfigInvalid(f"{text!r} is neither an address nor a network, such as 10.0.0.0/8") from error
        if not network.prefixlen:
            raise ConfigInvalid(f"{text!r} is everybody")
        found.append(network)
    return tuple(found)
