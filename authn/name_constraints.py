"""What the local authority may certify: the names and addresses of a gateway, and of no other server.

People install the authority's certificate on phones and computers. With name constraints (RFC 5280, 4.2.1.10) whoever
stole its key can pass for hosts of local networks, and for what this gateway was called when the authority was made,
but for no site of the internet. A name outside, which a gateway may get later, takes a new authority.
"""

import ipaddress
from collections.abc import Iterable

from cryptography import x509

LOCAL_DOMAINS = ("localhost", "local", "lan", "home", "home.arpa", "internal", "localdomain", "intranet")
"""Reserved for, or commonly used in, local networks; no site of the internet is below them."""
LOCAL_NETWORKS = (
    "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "127.0.0.0/8",
    "fc00::/7", "fe80::/10", "::1/128",
)  # fmt: skip
CLIENT = "client.skep.internal"
"""In client certificates, beside the account as common name: one with a dot would be judged as a host otherwise."""
_HOST_PREFIX_6 = 64
"""An IPv6 host makes itself new addresses within its network."""


def constraints(names: Iterable[str]) -> x509.NameConstraints:
    """Those of an authority that is made when the gateway has these names."""
    domains, networks = dict.fromkeys(LOCAL_DOMAINS), dict.fromkeys(map(ipaddress.ip_network, LOCAL_NETWORKS))
    for name in names:
        address = _address(name)
        if address is None:
            domains[name] = None
        elif not any(address in network for network in networks):
            prefix = _HOST_PREFIX_6 if address.version == 6 else address.max_prefixlen
            networks[ipaddress.ip_network((address, prefix), strict=False)] = None
    permitted: list[x509.GeneralName] = [x509.DNSName(domain) for domain in domains]
    permitted += [x509.IPAddress(network) for network in networks]
    return x509.NameConstraints(permitted_subtrees=permitted, excluded_subtrees=None)


def may_certify(authority: x509.Certificate, name: str) -> bool:
    """Whether clients of this authority accept a certificate with that name; one without constraints has any."""
    try:
        found = authority.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return True
    address = _address(name)
    if not found.permitted_subtrees:
        return True
    for permitted in found.permitted_subtrees:
        if address is None and isinstance(permitted, x509.DNSName):
            if name == permitted.value or name.endswith(f".{permitted.value}"):
                return True
        elif address is not None and isinstance(permitted, x509.IPAddress):
            network = permitted.value
            if isinstance(network, ipaddress.IPv4Network | ipaddress.IPv6Network) and address in network:
                return True
    return False


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
