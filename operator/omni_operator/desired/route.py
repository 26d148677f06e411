"""The route to a pipeline from outside the cluster: a GRPCRoute, an HTTPRoute or an Ingress, and its URL. Pure.

It has the name of the stable Service, to which it leads, so it stays the same in rollouts, and controllers' own
policies (timeouts, authentication) can attach to it. So has the BackendTLSPolicy, by which Gateways speak TLS to an
entry that has a certificate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from omni_kube.objects import Manifest, ObjectKind
from omni_operator.desired.build_settings import Owner
from omni_operator.desired.metadata import build_child
from omni_operator.desired.pod_settings import to_plain
from omni_operator.kinds import BACKEND_TLS, INGRESSES, ROUTE_KINDS
from omni_operator.names import child_labels, entry_service_name
from omni_proto.pipeline.types.entry import BackendTls, EntryRoute, GatewayApiRoute, IngressRoute
from omni_proto.pod_contract import GRPC_PORT

HTTP_PORT: Final = 80
HTTPS_PORT: Final = 443


def route_kinds(route: EntryRoute | None) -> list[ObjectKind]:
    """Returns the kinds of the route's objects, the route itself first; none if the resource asks for no route that
    this operator knows."""
    if route is not None and route.gateway_api is not None:
        return [ROUTE_KINDS[route.gateway_api.kind], *([BACKEND_TLS] if route.gateway_api.backend_tls else [])]
    return [INGRESSES] if route is not None and route.ingress is not None else []


def build_route(owner: Owner, route: EntryRoute | None) -> list[Manifest]:
    """Returns the route's objects, or nothing if the resource asks for none."""
    name, labels = entry_service_name(owner.name), child_labels(owner.name)

    def build(kind: str, spec: Manifest, annotations: Mapping[str, str] | None = None) -> Manifest:
        return build_child(kind, name, owner, labels, {"spec": spec}, annotations)

    if route is not None and (api := route.gateway_api) is not None:
        policies = [build(BACKEND_TLS.kind, _backend_tls_spec(owner, api.backend_tls))] if api.backend_tls else []
        return [*policies, build(api.kind, _gateway_api_spec(owner, api), route.annotations)]
    if route is not None and route.ingress is not None:
        return [build(INGRESSES.kind, _ingress_spec(owner, route.ingress), route.annotations)]
    return []


def _gateway_api_spec(owner: Owner, route: GatewayApiRoute) -> Manifest:
    backend = {"name": entry_service_name(owner.name), "port": GRPC_PORT}
    return {
        "parentRefs": to_plain(route.parent_refs),
        **({"hostnames": route.hostnames} if route.hostnames else {}),
        # Without matches a rule takes every call, those to grpc.health.v1 and reflection included.
        "rules": [{"backendRefs": [backend]}],
    }


def _backend_tls_spec(owner: Owner, tls: BackendTls) -> Manifest:
    service = entry_service_name(owner.name)
    return {
        "targetRefs": [{"group": "", "kind": "Service", "name": service}],
        "validation": {
            "hostname": tls.hostname or f"{service}.{owner.namespace}.svc",
            "caCertificateRefs": [{"group": "", **to_plain(ref)} for ref in tls.ca_certificate_refs],
        },
    }


def _ingress_spec(owner: Owner, ingress: IngressRoute) -> Manifest:
    service = {"name": entry_service_name(owner.name), "port": {"number": GRPC_PORT}}
    path = {"path": "/", "pathType": "Prefix", "backend": {"service": service}}
    secret, name = ingress.tls_secret_name, ingress.ingress_class_name
    return {
        **({"ingressClassName": name} if name else {}),
        **({"tls": [{"hosts": [ingress.host], "secretName": secret}]} if secret else {}),
        "rules": [{"host": ingress.host, "http": {"paths": [path]}}],
    }


def route_url(route: EntryRoute | None) -> str:
    """Returns where clients outside the cluster connect, as far as the resource says it; empty without a host name.

    The operator reads no Gateways, so it takes a listener for one with TLS unless its port is 80.
    """
    if route is not None and route.gateway_api is not None:
        hosts, port = route.gateway_api.hostnames, route.gateway_api.parent_refs[0].port or HTTPS_PORT
    elif route is not None and route.ingress is not None:
        hosts, port = [route.ingress.host], HTTPS_PORT if route.ingress.tls_secret_name else HTTP_PORT
    else:
        return ""
    host = next((host for host in hosts if not host.startswith("*.")), "")
    return f"{'grpc' if port == HTTP_PORT else 'grpcs'}://{host}:{port}" if host else ""
