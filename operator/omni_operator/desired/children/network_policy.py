"""NetworkPolicy of a stage, from the graph.

in:   gRPC from clients (entry stage) or from the upstream stage of the same revision; health from anywhere (kubelet
      has no selectable address, and the port shows only whether the stage is healthy); metrics from pods of the cluster
out:  gRPC to the stages that read this one; DNS of the cluster and of its network; the model hub, if the checkpoint is
      fetched from there (while the stage serves too: a policy cannot distinguish an init container)
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
"""All addresses but link-local ones and AWS's of IPv6: metadata services of clouds, which hand out credentials."""
_INSIDE: Final = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    _LINK_LOCAL,
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
    "fe80::/10",
)
"""Where resolvers are that are no pods: in the network of the cluster. DNS names could carry data to others."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def build_network_policy(build: StageBuild) -> Manifest:
    """The stage's NetworkPolicy."""
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
    resolvers: list[Manifest] = [{"namespaceSelector": {}}, *({"ipBlock": {"cidr": block}} for block in _INSIDE)]
    dns = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    rules: list[Manifest] = [{"ports": dns, "to": resolvers}]
    readers = sorted(reader.name for reader in readers_of(build.pipeline, build.stage.name))
    if readers:
        rules.append({"ports": _tcp(GRPC_PORT), "to": [_stage_pods(build, reader) for reader in readers]})
    if build.model.fetch is not None:
        mirror = build.settings.hub_endpoint
        hubs: list[Manifest] = [{"ipBlock": {"cidr": block, "except": not_in}} for block, not_in in _NO_HUBS.items()]
        if mirror is not None:
            # A block of addresses does not cover pods everywhere, and a mirror may be one.
            hubs.append({"namespaceSelector": {}})
        rules.append({"ports": _tcp(hub_port(mirror)), "to": hubs})
    return rules


def hub_port(endpoint: str | None) -> int:
    """Port of the model hub: the endpoint's, else that of its scheme, else 443."""
    if endpoint is None:
        return _DEFAULT_PORTS["https"]
    parts = urlsplit(endpoint)
    return parts.port or _DEFAULT_PORTS.get(parts.scheme, _DEFAULT_PORTS["https"])


def _stage_pods(build: StageBuild, stage: str) -> Manifest:
    return {"podSelector": {"matchLabels": names.stage_selector(build.owner.name, stage, build.revision)}}


def _tcp(port: int) -> list[Manifest]:
    return [{"protocol": "TCP", "port": port}]
