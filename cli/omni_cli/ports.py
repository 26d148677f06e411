"""Free ports of the loopback interface, picked before the stages start so that each can be told the next one's."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"
# Below the range from which the kernel gives ports to outgoing connections: the engines open such while they load.
FIRST_PORT, LAST_PORT = 20_000, 32_000
ATTEMPTS = 200


class NoFreePortError(RuntimeError):
    """No port could be had."""


def is_free(port: int) -> bool:
    """Whether a server could listen on that loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As a gRPC server does: connections of an earlier server in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def pick_ports(count: int) -> list[int]:
    """That many different free ports. Another program may take one before it is used. Raises NoFreePortError."""
    ports: list[int] = []
    for _ in range(ATTEMPTS * count):
        if len(ports) == count:
            return ports
        port = random.randint(FIRST_PORT, LAST_PORT)  # noqa: S311  no secret
        if port not in ports and is_free(port):
            ports.append(port)
    if len(ports) == count:
        return ports
    raise NoFreePortError(f"found only {len(ports)} of {count} free ports in {FIRST_PORT}-{LAST_PORT} on {LOOPBACK}")
