"""Rules on how clients reach a pipeline, in CEL."""

from __future__ import annotations

from typing import Final

from omni_proto.pipeline.rules.rule import Rule, one_of

_ANNOTATIONS: Final = Rule(
    summary="`annotations` has no key of the domain omnipipeline.io",
    rule="!has(self.annotations) || !self.annotations.exists(k, k.contains('omnipipeline.io/'))",
    words="annotations of the domain omnipipeline.io are reserved: %s; use a domain of your own",
    values=("self.annotations.filter(k, k.contains('omnipipeline.io/'))",),
    field=".annotations",
)

ENTRY_SERVICE_RULES: Final = (
    Rule(
        summary="`loadBalancerClass` is for type LoadBalancer only",
        rule="!has(self.loadBalancerClass) || (has(self.type) && self.type == 'LoadBalancer')",
        words="loadBalancerClass needs type: LoadBalancer; set this type, or remove loadBalancerClass",
        field=".loadBalancerClass",
    ),
    _ANNOTATIONS,
)
ENTRY_ROUTE_RULES: Final = (one_of("gatewayApi", "ingress"), _ANNOTATIONS)

_NGINX: Final = "nginx.ingress.kubernetes.io/backend-protocol"
ENTRY_RULES: Final = (
    Rule(
        summary="a route of the Gateway API to an entry with `tls` has `backendTls`",
        rule="!has(self.tls) || !has(self.route) || !has(self.route.gatewayApi) "
        "|| has(self.route.gatewayApi.backendTls)",
        words="entry.tls is set, so Gateways must speak TLS to the pipeline; set route.gatewayApi.backendTls, or "
        "remove entry.tls, and TLS ends at the Gateways",
        field=".route.gatewayApi",
    ),
    Rule(
        summary="`route.gatewayApi.backendTls` is for an entry with `tls` only",
        rule="has(self.tls) || !has(self.route) || !has(self.route.gatewayApi) "
        "|| !has(self.route.gatewayApi.backendTls)",
        words="backendTls needs entry.tls, without which the pipeline speaks plaintext; set entry.tls, or remove "
        "backendTls",
        field=".route.gatewayApi.backendTls",
    ),
    Rule(
        summary="an Ingress to an entry with `tls` has an annotation, in `route` or `service`, by which its controller "
        "speaks TLS to the pipeline",
        rule="!has(self.tls) || !has(self.route) || !has(self.route.ingress) "
        "|| (has(self.route.annotations) && size(self.route.annotations) > 0 "
        f"&& !('{_NGINX}' in self.route.annotations && self.route.annotations['{_NGINX}'] in ['GRPC', 'HTTP'])) "
        "|| (has(self.service) && has(self.service.annotations) && size(self.service.annotations) > 0)",
        words="entry.tls is set, so the Ingress controller must speak TLS to the pipeline; set its annotation for "
        f"that in route.annotations or service.annotations, e.g. {_NGINX}: GRPCS, or remove entry.tls, and TLS "
        "ends at the controller",
        field=".route.ingress",
    ),
)
