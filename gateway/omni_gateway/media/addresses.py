"""Decides from which addresses media may be fetched: only from public ones. Pure functions."""

from __future__ import annotations

import ipaddress
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
    """Returns whether an IP address belongs to the public internet: it is not private, loopback, link-local, reserved,
    shared or multicast."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is not None:
            return is_public(str(inner))
        if found in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
    return found.is_global and not found.is_multicast


_NAT64 = ipaddress.ip_network("64:ff9b::/96")
