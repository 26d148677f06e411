"""Which pods a gRPC target has now: the one small interface to name resolution.

A headless Service's name has one address for each ready pod. gRPC asks for it again only after a connection was lost,
so a new pod would wait for traffic. Here it is asked again every REFRESH_S seconds while calls are made. A cache of the
cluster's DNS delays new pods by as much as it holds an answer: docs/scaling.md lists which clusters have one.

Another source, such as EndpointSlices, is a function with the signature of Resolve.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable
from typing import Final

Resolve = Callable[[], tuple[str, ...]]
"""Returns the pods' addresses as gRPC targets, such as ipv4:10.0.0.7:50051. It blocks. Raises OSError."""

REFRESH_S: Final = 0.5
MAX_PODS: Final = 1000
"""Further addresses are ignored."""
_NAMED: Final = re.compile(r"(?:dns:(?:///)?)?(?P<host>\[[^\]/]+\]|[^:/\[\]]+):(?P<port>\d{1,5})")
_LISTED: Final = re.compile(r"(?P<kind>ipv4|ipv6):(?P<addresses>.+)")


def resolver_of(target: str) -> Resolve | None:
    """Returns how to find the pods behind a gRPC target. None if only gRPC can: a socket's path, a name server of its
    own, or a single address."""
    if listed := _LISTED.fullmatch(target):
        addresses = listed["addresses"].split(",")
        pods = tuple(f"{listed['kind']}:{address}" for address in addresses[:MAX_PODS])
        return (lambda: pods) if len(pods) > 1 else None
    named = _NAMED.fullmatch(target)
    if named is None or _is_address(named["host"].strip("[]")):
        return None
    host, port = named["host"], int(named["port"])
    return lambda: resolve_name(host, port)


def authority_of(target: str) -> str:
    """Returns the name by which gRPC calls the servers of a named target, and which their certificates must have; empty
    for other targets."""
    named = _NAMED.fullmatch(target)
    return f"{named['host']}:{named['port']}" if named else ""


def resolve_name(host: str, port: int) -> tuple[str, ...]:
    """Returns the addresses of a name now, as gRPC targets. Blocks. Raises OSError.

    A pod of a dual-stack Service has an address of each family, which are one pod; the family that the system prefers
    is used. Loopback addresses are one machine: none is returned for them, so that gRPC tries each.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family = found[0][0] if found else socket.AF_INET
    hosts = sorted({str(entry[4][0]) for entry in found if entry[0] == family})
    if all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in hosts):
        return ()
    if family == socket.AF_INET6:
        return tuple(f"ipv6:[{one}]:{port}" for one in hosts[:MAX_PODS])
    return tuple(f"ipv4:{one}:{port}" for one in hosts[:MAX_PODS])


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
