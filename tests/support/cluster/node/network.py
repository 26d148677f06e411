"""The node's network: a namespace, and a veth pair to the machine with addresses from an unused subnet.

The namespace keeps kube-proxy's rules and the pods' bridge off the machine.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from pathlib import Path

from support.cluster.node.layout import HOST_LINK, NETWORK_NAMESPACE, NODE_LINK, POD_NETWORK, SERVICE_NETWORK, Layout

_CANDIDATES = tuple(ipaddress.IPv4Network(f"10.{second}.0.0/30") for second in (*range(200, 240), *range(120, 160)))


def create(layout: Layout) -> None:
    """Makes the namespace and the links, and writes the file that `addresses` reads."""
    subnet = _free_subnet()
    host, node = map(str, list(subnet.hosts())[:2])
    _run("ip", "netns", "add", NETWORK_NAMESPACE)
    _run("ip", "link", "add", HOST_LINK, "type", "veth", "peer", "name", NODE_LINK, "netns", NETWORK_NAMESPACE)
    _run("ip", "address", "add", f"{host}/{subnet.prefixlen}", "dev", HOST_LINK)
    _run("ip", "link", "set", HOST_LINK, "up")
    for command in (
        ("ip", "link", "set", "lo", "up"),
        ("ip", "address", "add", f"{node}/{subnet.prefixlen}", "dev", NODE_LINK),
        ("ip", "link", "set", NODE_LINK, "up"),
        ("ip", "route", "add", "default", "via", host),
        ("sysctl", "-qw", "net.ipv4.ip_forward=1"),
    ):
        _run("nsenter", f"--net={layout.network}", *command)
    (layout.run / "addresses.json").write_text(json.dumps({"host": host, "node": node}))


def addresses(layout: Layout) -> tuple[str, str]:
    """Returns (address of the machine as pods see it, address of the node)."""
    found = json.loads((layout.run / "addresses.json").read_text())
    return found["host"], found["node"]


def remove() -> None:
    """Removes the links and the namespace, if they exist."""
    if Path(f"/sys/class/net/{HOST_LINK}").exists():
        _run("ip", "link", "delete", HOST_LINK)
    if (Path("/run/netns") / NETWORK_NAMESPACE).exists():
        _run("ip", "netns", "delete", NETWORK_NAMESPACE)


def _free_subnet() -> ipaddress.IPv4Network:
    """Returns a subnet that overlaps neither the machine's routes nor the node's own networks.

    Raises RuntimeError if there is none.
    """
    taken = [ipaddress.IPv4Network(own) for own in (POD_NETWORK, SERVICE_NETWORK)]
    for route in json.loads(_run("ip", "-json", "-4", "route", "show", "table", "all")):
        destination = route.get("dst", "default")
        if destination != "default":
            taken.append(ipaddress.IPv4Network(destination, strict=False))
    for candidate in _CANDIDATES:
        if not any(candidate.overlaps(network) for network in taken):
            return candidate
    raise RuntimeError("no free private subnet for the node: every candidate overlaps with a route of this machine")


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout
