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
