"""Decides from which addresses media may be fetched: only from public ones. Pure functions."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import SplitResult, urlsplit

from omni_gateway.errors import InvalidMediaError


def check_url(url: str, *, param: str) -> SplitResult:
    """Returns the parts of a URL. Raises InvalidMediaError unless it is https, on port 443, with a host and no user."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidMediaError(f"{param} is not a valid URL.", param=param) from error
    if parts.scheme.lower() != "https" or not parts.hostname or port not in (None, 443) or parts.username is not None:
        raise InvalidMediaError(f"{param} must be https://HOST/..., on port 443 and without a user.", param=param)
    return parts


def is_public(address: str) -> bool:
    """Returns whether an IP address belongs to a host of the public internet.

    An IPv4 address inside an IPv6 address is judged as well, because a translator or a tunnel may deliver to it.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return not any(found in network for network in _NOT_PUBLIC)
    low = int(found) & 0xFFFF_FFFF
    if any(found in network for network in _TRANSLATED):
        return is_public(str(ipaddress.IPv4Address(low)))
    if found not in _GLOBAL_UNICAST or any(found in network for network in _NOT_PUBLIC_6):
        return False
    return (int(found) >> 32 & _ISATAP_MASK) != _ISATAP or is_public(str(ipaddress.IPv4Address(low)))


_NOT_PUBLIC: Final = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private use
        "100.64.0.0/10",  # shared address space of carriers
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, metadata services of clouds
        "172.16.0.0/12",  # private use
        "192.0.0.0/24",  # IETF protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private use
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
"""IANA's IPv4 Special-Purpose Address Registry (iana-ipv4-special-registry), with those of its blocks that are
reachable from everywhere but serve no content, and multicast (RFC 5771)."""
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""The only block from which IANA assigns addresses of hosts (ipv6-address-space). All others are refused: loopback,
::a.b.c.d, ::ffff:0:a.b.c.d, local NAT64 (64:ff9b:1::/48), discard-only, SRv6 (5f00::/16), unique local, link-local,
site-local (fec0::/10), multicast and unassigned ones."""
_NOT_PUBLIC_6: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # IETF protocol assignments: Teredo, benchmarking, ORCHID and others
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, whose relays are switched off (RFC 7526)
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
"""The blocks of IANA's IPv6 Special-Purpose Address Registry (iana-ipv6-special-registry) inside 2000::/3."""
_TRANSLATED: Final = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""Addresses that mean an IPv4 address, in their last 32 bits: mapped ones, and those of NAT64's well-known prefix."""
_ISATAP: Final = 0x5EFE
"""The upper half of ISATAP's interface identifiers ::0:5efe:a.b.c.d and ::200:5efe:a.b.c.d (RFC 5214), without the bits
that say whether the IPv4 address is unique, or of a group."""
_ISATAP_MASK: Final = 0xFCFF_FFFF
