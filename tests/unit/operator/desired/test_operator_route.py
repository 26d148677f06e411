"""The route's object and its URL, for each form of spec.entry.route."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.desired.route import route_url
from omni_operator.kinds import ROUTE_KINDS
from support.operator.operator_pipelines import OWNER, build_all, make_single, pick

PARENTS = [{"name": "public", "namespace": "gateways", "port": 8443}, {"name": "inner"}]
RULES = [{"backendRefs": [{"name": "demo", "port": 50051}]}]
PATH = {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "demo", "port": {"number": 50051}}}}
HTTP = {"paths": [PATH]}

CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any], str]] = {
    # name: (spec.entry.route, kind, spec of the object, URL)
    "gRPC": (
        {"gatewayApi": {"parentRefs": PARENTS, "hostnames": ["*.a.example", "b.example"]}},
        "GRPCRoute",
        {"parentRefs": PARENTS, "hostnames": ["*.a.example", "b.example"], "rules": RULES},
        "grpcs://b.example:8443",
    ),
    "HTTP": (
        {"gatewayApi": {"kind": "HTTPRoute", "parentRefs": [{"name": "a", "sectionName": "x"}], "hostnames": ["b"]}},
        "HTTPRoute",
        {"parentRefs": [{"name": "a", "sectionName": "x"}], "hostnames": ["b"], "rules": RULES},
        "grpcs://b:443",
    ),
    "plaintext": (
        {"gatewayApi": {"parentRefs": [{"name": "a", "port": 80}], "hostnames": ["b.example"]}},
        "GRPCRoute",
        {"parentRefs": [{"name": "a", "port": 80}], "hostnames": ["b.example"], "rules": RULES},
        "grpc://b.example:80",
    ),
    "the listener's names": (
        {"gatewayApi": {"parentRefs": [{"name": "a"}]}},
        "GRPCRoute",
        {"parentRefs": [{"name": "a"}], "rules": RULES},
        "",
    ),
    "ingress": (
        {"ingress": {"ingressClassName": "nginx", "host": "b.example", "tlsSecretName": "cert"}},
        "Ingress",
        {
            "ingressClassName": "nginx",
            "tls": [{"hosts": ["b.example"], "secretName": "cert"}],
            "rules": [{"host": "b.example", "http": HTTP}],
        },
        "grpcs://b.example:443",
    ),
    "ingress, plaintext": (
        {"ingress": {"host": "b.example"}},
        "Ingress",
        {"rules": [{"host": "b.example", "http": HTTP}]},
        "grpc://b.example:80",
    ),
}


@pytest.mark.parametrize(("route", "kind", "spec", "url"), CASES.values(), ids=CASES)
def test_route(route: dict[str, Any], kind: str, spec: dict[str, Any], url: str) -> None:
    pipeline = make_single(spec={"entry": {"route": {**route, "annotations": {"example.com/a": "b"}}}})
    found = pick(build_all(pipeline), kind)
    assert (found["metadata"]["name"], found["metadata"]["namespace"]) == ("demo", OWNER.namespace)
    assert found["metadata"]["annotations"]["example.com/a"] == "b"
    assert found["spec"] == spec
    assert route_url(pipeline.spec.entry.route) == url


@pytest.mark.parametrize(
    ("given", "validation"),
    [
        (
            {"caCertificateRefs": [{"name": "cas"}]},
            {
                "hostname": f"demo.{OWNER.namespace}.svc",
                "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "cas"}],
            },
        ),
        (
            {"hostname": "b.example", "caCertificateRefs": [{"kind": "Secret", "name": "tls"}]},
            {"hostname": "b.example", "caCertificateRefs": [{"group": "", "kind": "Secret", "name": "tls"}]},
        ),
    ],
    ids=["default host name", "own host name"],
)
def test_policy_by_which_gateways_speak_tls(given: dict[str, Any], validation: dict[str, Any]) -> None:
    route = {"gatewayApi": {"parentRefs": [{"name": "a"}], "backendTls": given}, "annotations": {"a/b": "c"}}
    children = build_all(make_single(spec={"entry": {"tls": {"secretName": "tls"}, "route": route}}))
    policy = pick(children, "BackendTLSPolicy")
    assert policy["metadata"]["name"] == "demo"
    assert "a/b" not in policy["metadata"]["annotations"], "the annotations are those of the route"
    target = {"group": "", "kind": "Service", "name": "demo"}
    assert policy["spec"] == {"targetRefs": [target], "validation": validation}
    kinds = [child["kind"] for child in children]
    assert kinds.index("BackendTLSPolicy") < kinds.index("GRPCRoute"), "no Gateway may speak plaintext meanwhile"


def test_without_a_route() -> None:
    kinds = {child["kind"] for child in build_all(make_single())}
    assert not kinds & ROUTE_KINDS.keys()
    assert route_url(None) == ""
