"""Picks free ports of the loopback interface before the stages start, because each stage's file names the ports of the
stages that it calls."""

from __future__ import annotations

import os
import random
import re
import socket

LOOPBACK = "127.0.0.1"
RANGE_VARIABLE = "OMNIPIPE_PORTS"
"""FIRST-LAST: the range of ports to pick from, for machines where ports of the default range are taken or blocked."""
# This is below the range from which the kernel takes ports for outgoing connections. Engines open such connections
# while they load, and one of them could otherwise take a stage's port.
DEFAULT_RANGE = range(20_000, 32_000)
# Not the shared generator: vLLM seeds it, and two programs with the same seed would pick the same ports.
_random = random.SystemRandom()


class NoFreePortError(RuntimeError):
    """Not enough free ports were found, or OMNIPIPE_PORTS is not FIRST-LAST."""


def port_range() -> range:
    """Returns the range in OMNIPIPE_PORTS, else 20000-31999. Raises NoFreePortError if the variable is malformed."""
    text = os.environ.get(RANGE_VARIABLE, "")
    if not text:
        return DEFAULT_RANGE
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if found and 1024 <= int(found[1]) <= int(found[2]) <= 65535:
        return range(int(found[1]), int(found[2]) + 1)
    raise NoFreePortError(f"{RANGE_VARIABLE} must be FIRST-LAST with 1024 <= FIRST <= LAST <= 65535; got {text!r}")


def is_free(port: int) -> bool:
    """Returns whether a server could listen on that loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # A gRPC server sets this option too: connections of an earlier server in TIME_WAIT do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def pick_ports(count: int, *, without: int | None = None) -> list[int]:
    """Returns `count` different free ports other than `without`. Another program may still take one before the stage
    binds it.

    Raises NoFreePortError.
    """
    among = port_range()
    ports: list[int] = []
    for port in _random.sample(among, len(among)):
        if len(ports) == count:
            break
        if port != without and is_free(port):
            ports.append(port)
    if len(ports) < count:
        where = f"{among.start}-{among.stop - 1} on {LOOPBACK}"
        raise NoFreePortError(
            f"found only {len(ports)} of {count} free ports in {where}; set {RANGE_VARIABLE} to another range"
        )
    return ports
