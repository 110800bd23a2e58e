"""Addresses of hosts."""

from ipaddress import ip_address


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
