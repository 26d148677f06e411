"""Services: two stable ones that select the serving revision's entry stage, and a headless one for each stage.

gRPC keeps one connection for many calls, so a stage's upstream balances its calls over the addresses of a headless
Service. Of the two stable Services, the one with the pipeline's name has a cluster IP, for clients that cannot balance
their calls themselves. The other is headless.
"""

from __future__ import annotations

from omni_kube.objects import Manifest
from omni_operator import names
from omni_operator.desired.build_settings import Owner
from omni_operator.desired.metadata import build_child
from omni_operator.desired.stage_build import StageBuild
from omni_proto.pod_contract import GRPC_PORT, GRPC_PORT_NAME


def build_entry_services(owner: Owner, serving: str | None, *, tls: bool = False) -> list[Manifest]:
    """Returns the stable Services of a pipeline. Without a serving revision they have no endpoints.

    tls: whether clients reach the serving revision over TLS.
    """
    selector = names.entry_selector(owner.name, serving)
    labels = names.child_labels(owner.name)
    return [
        build_child(
            "Service", names.headless_service_name(owner.name), owner, labels, {"spec": _headless_spec(selector, tls)}
        ),
        build_child(
            "Service",
            names.entry_service_name(owner.name),
            owner,
            labels,
            {"spec": {"selector": selector, "ports": _ports(tls)}},
        ),
    ]


def build_stage_service(build: StageBuild) -> Manifest:
    """Returns a stage's headless Service, by which its upstream stage of the same revision calls it.

    The entry stage has one too, although it has no upstream stage.
    """
    spec = _headless_spec(build.selector, tls=build.tls is not None)
    return build_child("Service", build.name, build.owner, build.labels, {"spec": spec})


def _headless_spec(selector: dict[str, str], tls: bool) -> Manifest:
    return {"clusterIP": "None", "selector": selector, "ports": _ports(tls)}


def _ports(tls: bool) -> list[Manifest]:
    return [
        {
            "name": GRPC_PORT_NAME,
            "port": GRPC_PORT,
            "targetPort": GRPC_PORT_NAME,
            "protocol": "TCP",
            # The protocol, for meshes and gateways: HTTP/2 without TLS, or TLS, which they must forward unchanged.
            "appProtocol": "https" if tls else "kubernetes.io/h2c",
        }
    ]
