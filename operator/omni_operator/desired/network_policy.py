"""NetworkPolicy of a stage, derived from the graph.

in:   gRPC from clients (entry stage) or from the upstream stage of the same revision; health from anywhere (a policy
      cannot select kubelet, and the port shows only whether the stage is healthy); metrics from pods of the cluster
out:  gRPC to the downstream stages; DNS servers and the OpenTelemetry collector, in pods or at private addresses; the
      model hub, if the checkpoint is downloaded from it (also while the stage serves, because a policy applies to all
      containers of a pod)
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from omni_kube.objects import Manifest
from omni_operator import names
from omni_operator.desired.metadata import build_child
from omni_operator.desired.stage_build import StageBuild
from omni_proto.pipeline import readers_of
from omni_proto.pod_contract import GRPC_PORT, HEALTH_PORT, METRICS_PORT

_LINK_LOCAL: Final = "169.254.0.0/16"
_NO_HUBS: Final = {"0.0.0.0/0": [_LINK_LOCAL], "::/0": ["fe80::/10", "fd00:ec2::254/128"]}
"""IP blocks with all addresses, each with its exceptions: link-local addresses and AWS's IPv6 metadata address. No
model hub has such an address, but the metadata services of clouds do, and they hand out credentials."""
_INSIDE: Final = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    _LINK_LOCAL,
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
    "fe80::/10",
)
"""Private address blocks, for DNS servers and collectors outside of pods. Access to public blocks could leak data."""
_OPENSHIFT_DNS: Final = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}}
"""OpenShift's DNS servers. They listen on port 5353, which OpenShift's network plugin checks instead of their Service's
port 53."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def build_network_policy(build: StageBuild) -> Manifest:
    """Returns the stage's NetworkPolicy."""
    spec = {
        "podSelector": {"matchLabels": build.selector},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": _ingress(build),
        "egress": _egress(build),
    }
    return build_child("NetworkPolicy", build.name, build.owner, build.labels, {"spec": spec})


def _ingress(build: StageBuild) -> list[Manifest]:
    calls: Manifest = {"ports": _tcp(GRPC_PORT)}
    if build.stage.inputs:
        calls["from"] = [_stage_pods(build, build.stage.inputs[0].source)]
    return [
        calls,
        {"ports": _tcp(HEALTH_PORT)},
        {"ports": _tcp(METRICS_PORT), "from": [{"namespaceSelector": {}}]},
    ]


def _egress(build: StageBuild) -> list[Manifest]:
    inside: list[Manifest] = [{"namespaceSelector": {}}, *({"ipBlock": {"cidr": block}} for block in _INSIDE)]
    rules: list[Manifest] = [{"ports": _dns(53), "to": inside}, {"ports": _dns(5353), "to": [_OPENSHIFT_DNS]}]
    readers = sorted(reader.name for reader in readers_of(build.pipeline, build.stage.name))
    if readers:
        rules.append({"ports": _tcp(GRPC_PORT), "to": [_stage_pods(build, reader) for reader in readers]})
    if (collector := build.collector) is not None:
        rules.append({"ports": _tcp(collector_port(collector)), "to": inside})
    if build.model.fetch is not None:
        mirror = build.settings.hub_endpoint
        hubs: list[Manifest] = [{"ipBlock": {"cidr": block, "except": not_in}} for block, not_in in _NO_HUBS.items()]
        if mirror is not None:
            # The mirror may be a pod, and with some network plugins an ipBlock does not match pods.
            hubs.append({"namespaceSelector": {}})
        rules.append({"ports": _tcp(hub_port(mirror)), "to": hubs})
    return rules


def collector_port(endpoint: str) -> int:
    """Returns the port of an OTLP collector; its URL always includes one."""
    return int(endpoint.rpartition(":")[2])


def hub_port(endpoint: str | None) -> int:
    """Returns the model hub's port: from the endpoint, else the default of its scheme, else 443."""
    if endpoint is None:
        return _DEFAULT_PORTS["https"]
    parts = urlsplit(endpoint)
    return parts.port or _DEFAULT_PORTS.get(parts.scheme, _DEFAULT_PORTS["https"])


def _stage_pods(build: StageBuild, stage: str) -> Manifest:
    return {"podSelector": {"matchLabels": names.stage_selector(build.owner.name, stage, build.revision)}}


def _dns(port: int) -> list[Manifest]:
    return [{"protocol": protocol, "port": port} for protocol in ("UDP", "TCP")]


def _tcp(port: int) -> list[Manifest]:
    return [{"protocol": "TCP", "port": port}]
