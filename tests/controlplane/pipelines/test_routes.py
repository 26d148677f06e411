"""The route of an entry on a real API server, with the Gateway API's own CRDs.

No controller of routes runs: the tests write what one says, as the Gateway API defines it, into the route's status.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import (
    build_pipeline,
    build_stage,
    condition_of,
    serving_revision,
    wait_condition,
    wait_settled,
)
from support.controlplane.server.api import Api, ApiError, Manifest, eventually

pytestmark = pytest.mark.controlplane

GROUP = "gateway.networking.k8s.io"
PARENT = {"name": "public", "namespace": "gateways", "sectionName": "grpc"}
HOST = "voice.example.com"
GATEWAY = {"gatewayApi": {"parentRefs": [PARENT], "hostnames": [HOST]}}
INGRESS = {
    "ingress": {"ingressClassName": "nginx", "host": HOST, "tlsSecretName": "voice"},
    "annotations": {"a/b": "c"},
}


def routed(route: Manifest | None, tls: Manifest | None = None, **spec: Any) -> Manifest:
    given = {"route": route, "tls": tls}
    entry = {"entry": {name: value for name, value in given.items() if value}} if route else {}
    return build_pipeline(stages=[build_stage("thinker", outputs=["Text"])], **entry, **spec)


def wait_route(api: Api, kind: str) -> Manifest:
    found = eventually(lambda: api.find(kind, "omni"), why=f"a {kind}")
    assert found is not None
    return found


def answer(api: Api, kind: str, accepted: str = "Accepted", resolved: str = "ResolvedRefs") -> None:
    """Writes what a Gateway's controller says about the present spec of a route, or of the policy for the Gateway.
    accepted, resolved: the reasons."""
    route = wait_route(api, kind)
    conditions = [
        {
            "type": name,
            "status": str(reason == name),
            "reason": reason,
            "message": f"the controller says {reason}",
            "observedGeneration": route["metadata"]["generation"],
            "lastTransitionTime": "2026-11-28T12:00:00Z",
        }
        for name, reason in (("Accepted", accepted), ("ResolvedRefs", resolved))
    ]
    said = {"controllerName": "example.com/gateways", "conditions": conditions}
    if kind == "BackendTLSPolicy":
        ref = {"group": GROUP, "kind": "Gateway", **PARENT}
        status: Manifest = {"ancestors": [{"ancestorRef": ref, **said}]}
    else:
        status = {"parents": [{"parentRef": route["spec"]["parentRefs"][0], **said}]}
    api.patch(kind, "omni", {"status": status}, subresource="status")


def wait_message(api: Api, words: str) -> None:
    """Waits until RouteAccepted says so."""
    eventually(lambda: words in condition_of(api.get("OmniPipeline", "omni"), "RouteAccepted")["message"], why=words)


def may(api: Api, verb: str) -> bool:
    """Returns whether the operator's account has a right to Ingresses."""
    attributes = {"namespace": api.namespace, "verb": verb, "group": "networking.k8s.io", "resource": "ingresses"}
    user = f"system:serviceaccount:{api.namespace}:omnipipeline-operator"
    review: Manifest = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    return bool(api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"])


def grant(api: Api, *verbs: str) -> None:
    """Replaces the operator's rights to Ingresses, and waits until the API server knows."""
    role = next(role for role in api.list("Role") if len(role["rules"]) > 3)
    rules = [rule for rule in role["rules"] if rule["resources"] != ["ingresses"]]
    own = {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses"], "verbs": list(verbs)}
    api.patch("Role", role["metadata"]["name"], {"rules": [*rules, own] if verbs else rules})
    eventually(lambda: all(may(api, verb) == (verb in verbs) for verb in ("list", "patch", "create")))


def test_without_the_gateway_api_all_else_is_served(api: Api, operator: OperatorProcess) -> None:
    api.apply(routed(GATEWAY), strict=True)
    wait_condition(api, "Ready", status="True")
    missing = wait_condition(api, "RouteAccepted", status="False", reason="RouteUnavailable")
    assert f"the cluster has no grpcroutes of {GROUP}/v1" in missing["message"]
    api.delete("Service", "omni-headless")
    eventually(lambda: api.find("Service", "omni-headless"), why="what serves is healed")
    wait_settled(api)

    api.replace_spec(routed(INGRESS))
    ingress = wait_route(api, "Ingress")
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [{"hosts": [HOST], "secretName": "voice"}]
    assert ingress["metadata"]["annotations"]["a/b"] == "c"
    wait_condition(api, "RouteAccepted", status="False", reason="RoutePending")
    point = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
    api.patch("Ingress", "omni", {"status": point}, subresource="status")
    assert "192.0.2.1" in wait_condition(api, "RouteAccepted", status="True", reason="Accepted")["message"]
    assert api.get("OmniPipeline", "omni")["status"]["routeUrl"] == f"grpcs://{HOST}:443"
    # Somebody deletes it, and edits it.
    api.delete("Ingress", "omni")
    wait_route(api, "Ingress")
    api.patch("Ingress", "omni", [{"op": "replace", "path": "/spec/rules/0/host", "value": "other.example.com"}])
    eventually(lambda: api.get("Ingress", "omni")["spec"]["rules"][0]["host"] == HOST)

    api.replace_spec(routed(None))
    eventually(lambda: api.find("Ingress", "omni") is None, why="the Ingress goes with the field")
    eventually(lambda: not condition_of(api.get("OmniPipeline", "omni"), "RouteAccepted"))
    assert "routeUrl" not in api.get("OmniPipeline", "omni")["status"]


def test_what_a_gateway_says_is_in_the_status(api: Api, gateway_api: None, operator: OperatorProcess) -> None:
    api.apply(routed(GATEWAY), strict=True)
    wait_condition(api, "RouteAccepted", status="False", reason="RoutePending")
    answer(api, "GRPCRoute", accepted="NotAllowedByListeners")
    refused = wait_condition(api, "RouteAccepted", status="False", reason="RouteRefused")
    assert "Gateway gateways/public, listener grpc says Accepted=False, NotAllowedByListeners" in refused["message"]
    answer(api, "GRPCRoute", resolved="UnsupportedProtocol")
    unresolved = wait_condition(api, "RouteAccepted", status="False", reason="RouteUnresolved")
    assert "kubernetes.io/h2c" in unresolved["message"]
    answer(api, "GRPCRoute")
    wait_condition(api, "RouteAccepted", status="True", reason="Accepted")
    wait_settled(api)
    warned = {event["reason"] for event in api.list("Event") if event["type"] == "Warning"}
    assert {"RouteRefused", "RouteUnresolved"} <= warned

    before, revision = wait_route(api, "GRPCRoute"), serving_revision(api)
    (backend,) = before["spec"]["rules"][0]["backendRefs"]
    assert (backend["name"], backend["port"]) == ("omni", 50051)
    api.replace_spec(routed(GATEWAY, defaults={"image": "example.com/stage:2"}))
    eventually(lambda: serving_revision(api) != revision, why="the Service switches to the new revision")
    after = wait_route(api, "GRPCRoute")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"], "the route stays as it is"
    wait_condition(api, "RouteAccepted", status="True")

    api.replace_spec(routed({"gatewayApi": {**GATEWAY["gatewayApi"], "kind": "HTTPRoute"}}))
    wait_route(api, "HTTPRoute")
    eventually(lambda: api.find("GRPCRoute", "omni") is None, why="the route of the other kind goes")
    answer(api, "HTTPRoute")
    wait_condition(api, "RouteAccepted", status="True", reason="Accepted")
    # What the Gateway API itself refuses is shown in its words, and corrected by an edit.
    api.replace_spec(routed({"gatewayApi": {"parentRefs": [PARENT, {"name": "public", "namespace": "gateways"}]}}))
    invalid = wait_condition(api, "RouteAccepted", status="False", reason="ApplyFailed")
    assert "sectionName must be specified" in invalid["message"]
    api.replace_spec(routed(GATEWAY))
    wait_condition(api, "RouteAccepted", status="False", reason="RoutePending")
    wait_idle(operator)
    wait_settled(api)


def test_gateways_speak_tls_to_an_entry_with_a_certificate(
    api: Api, gateway_api: None, operator: OperatorProcess
) -> None:
    tls = {"secretName": "tls"}
    with pytest.raises(ApiError, match=r"set route\.gatewayApi\.backendTls, or remove entry\.tls"):
        api.apply(routed(GATEWAY, tls), strict=True)
    sealed = {"gatewayApi": {**GATEWAY["gatewayApi"], "backendTls": {"caCertificateRefs": [{"name": "cas"}]}}}
    api.apply(routed(sealed, tls), strict=True)
    policy = wait_route(api, "BackendTLSPolicy")
    assert policy["spec"]["validation"]["hostname"] == f"omni.{api.namespace}.svc"
    answer(api, "GRPCRoute")
    wait_message(api, "BackendTLSPolicy omni: no controller has answered for Gateway gateways/public")
    answer(api, "BackendTLSPolicy", accepted="NoValidCACertificate", resolved="InvalidCACertificateRef")
    unresolved = wait_condition(api, "RouteAccepted", status="False", reason="RouteUnresolved")
    assert "caCertificateRefs of backendTls must name objects of this namespace" in unresolved["message"]
    answer(api, "BackendTLSPolicy")
    wait_condition(api, "RouteAccepted", status="True", reason="Accepted")
    # Somebody edits it, and deletes it.
    change = [{"op": "replace", "path": "/spec/validation/hostname", "value": "other.example"}]
    api.patch("BackendTLSPolicy", "omni", change)
    eventually(lambda: api.get("BackendTLSPolicy", "omni")["spec"] == policy["spec"], why="the edit is undone")
    api.delete("BackendTLSPolicy", "omni")
    wait_route(api, "BackendTLSPolicy")

    api.replace_spec(routed(GATEWAY))
    eventually(lambda: api.find("BackendTLSPolicy", "omni") is None, why="the policy goes with the field")
    wait_idle(operator)
    wait_settled(api)


def test_missing_rights_hold_up_nothing_else(api: Api, make_operator: Callable[..., OperatorProcess]) -> None:
    """An operator whose Role is older than it, then one whose Role is half as wide as it should be."""
    operator = make_operator()
    grant(api)
    with operator:
        api.apply(routed(INGRESS))
        wait_condition(api, "Ready", status="True")
        unwatched = wait_condition(api, "RouteAccepted", status="False", reason="RouteUnavailable")
        assert "the operator may not list and watch ingresses" in unwatched["message"]
    grant(api, "get", "list", "watch")
    with make_operator():
        refused = wait_condition(api, "RouteAccepted", status="False", reason="ApplyFailed")
        assert "writing Ingress omni failed" in refused["message"]
        api.delete("Service", "omni-headless")
        eventually(lambda: api.find("Service", "omni-headless"), why="what serves is healed")
        wait_settled(api)
        assert condition_of(api.get("OmniPipeline", "omni"), "Degraded")["status"] == "False"
        grant(api, "get", "list", "watch", "create", "patch", "delete")
        api.replace_spec(routed({**INGRESS, "annotations": {"a/b": "d"}}))
        # The retry of the refused write may come first, and still has the spec before.
        eventually(
            lambda: (api.find("Ingress", "omni") or {}).get("metadata", {}).get("annotations", {}).get("a/b") == "d"
        )


def test_somebody_elses_ingress_is_left_alone(api: Api, operator: OperatorProcess) -> None:
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    own: Manifest = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "omni"},
        "spec": {"defaultBackend": backend},
    }
    api.apply(own)
    api.apply(routed(INGRESS))
    taken = wait_condition(api, "RouteAccepted", status="False", reason="ChildConflict")
    assert f"kubectl delete -n {api.namespace} ingress/omni" in taken["message"]
    wait_settled(api)
    assert api.get("Ingress", "omni")["spec"]["defaultBackend"] == backend
