"""The TCP and UDP ports that processes have open, as the kernel reports them."""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LISTEN, _UDP_OPEN = "0A", "07"


@dataclass(frozen=True, order=True)
class Listener:
    """A listening TCP socket, or a UDP socket that accepts datagrams from any peer."""

    protocol: str
    address: str
    port: int
    program: str
    """Name of the process."""

    @property
    def is_local(self) -> bool:
        """Returns whether the address is loopback, so that nothing outside the pod can reach the socket."""
        address = ipaddress.ip_address(self.address)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def list_listeners(pids: Iterable[int]) -> set[Listener]:
    """Returns the processes' listeners. A socket shared by several processes is listed once, for the lowest PID."""
    found: dict[str, Listener] = {}
    for pid in sorted(pids):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            sockets = _socket_inodes(pid)
            for protocol, state in (("tcp", _LISTEN), ("tcp6", _LISTEN), ("udp", _UDP_OPEN), ("udp6", _UDP_OPEN)):
                for line in Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == state and fields[9] in sockets and fields[9] not in found:
                        address, port = _decode(fields[1])
                        name = Path(f"/proc/{pid}/comm").read_text().strip()
                        found[fields[9]] = Listener(protocol.rstrip("6"), address, port, name)
    return set(found.values())


def _socket_inodes(pid: int) -> set[str]:
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    return inodes


def _decode(text: str) -> tuple[str, int]:
    """Returns address and port from an entry of /proc/net, whose words have the machine's byte order."""
    host, _, port = text.partition(":")
    words = bytes.fromhex(host)
    packed = b"".join(struct.pack(">I", word) for (word,) in struct.iter_unpack("=I", words))
    return str(ipaddress.ip_address(packed)), int(port, 16)
