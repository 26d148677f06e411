"""Which connections the generated NetworkPolicies allow.

tests/support/operator/network_policies.py evaluates the policies. TestEvaluation checks that module against the
API's rules.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from omni_kube.objects import Manifest
from omni_operator import names
from omni_operator.desired.build_settings import BuildSettings
from omni_operator.desired.revision import compute_revision
from support.operator.network_policies import AddressPeer, Peer, PodPeer, is_allowed
from support.operator.operator_pipelines import OWNER, SETTINGS, build_all, make_pipeline, make_stages
from support.tables import each_row

PIPELINE = make_pipeline()
REVISION = compute_revision(PIPELINE, SETTINGS.default_image)
OTHER_REVISION = "0000000"


def pods(stage: str, revision: str = REVISION, namespace: str = OWNER.namespace, pipeline: str = OWNER.name) -> PodPeer:
    return PodPeer(namespace, names.stage_selector(pipeline, stage, revision))


def policies_of(children: list[Manifest]) -> list[Manifest]:
    return [child for child in children if child["kind"] == "NetworkPolicy"]


THINKER, TALKER, TOKEN2WAV = pods("thinker"), pods("talker"), pods("token2wav")
CLIENT = PodPeer("apps", {"app": "chat"})
NEIGHBOUR = PodPeer(OWNER.namespace, {"app": "notebook"})
PROMETHEUS = PodPeer("monitoring", {"app.kubernetes.io/name": "prometheus"})
RESOLVER = PodPeer("kube-system", {"k8s-app": "kube-dns"})
NODE = AddressPeer("10.0.0.7")
HOST = AddressPeer("192.0.2.10")
HUB = AddressPeer("203.0.113.5")

MATRIX: dict[str, tuple[Peer, Peer, int, bool]] = {
    "client to entry": (CLIENT, THINKER, 50051, True),
    "client outside the cluster to entry": (HOST, THINKER, 50051, True),
    "client to talker": (CLIENT, TALKER, 50051, False),
    "neighbour to talker": (NEIGHBOUR, TALKER, 50051, False),
    "client to token2wav": (CLIENT, TOKEN2WAV, 50051, False),
    "upstream to downstream": (THINKER, TALKER, 50051, True),
    "talker to token2wav": (TALKER, TOKEN2WAV, 50051, True),
    "past a stage": (THINKER, TOKEN2WAV, 50051, False),
    "downstream to upstream": (TALKER, THINKER, 50051, False),
    "token2wav to talker": (TOKEN2WAV, TALKER, 50051, False),
    "upstream of another revision": (pods("thinker", OTHER_REVISION), TALKER, 50051, False),
    "to a downstream of another revision": (THINKER, pods("talker", OTHER_REVISION), 50051, False),
    "upstream of another pipeline": (pods("thinker", pipeline="other"), TALKER, 50051, False),
    "upstream of another namespace": (pods("thinker", namespace="elsewhere"), TALKER, 50051, False),
    "prometheus to entry": (PROMETHEUS, THINKER, 9090, True),
    "prometheus to talker": (PROMETHEUS, TALKER, 9090, True),
    "metrics from outside the cluster": (HOST, TALKER, 9090, False),
    "kubelet to health": (NODE, TALKER, 50052, True),
    "kubelet to health of the entry": (NODE, THINKER, 50052, True),
    "a port that nobody listens on": (CLIENT, THINKER, 8000, False),
    "stage to a neighbour": (TALKER, NEIGHBOUR, 8080, False),
    "stage to the internet": (TALKER, HUB, 443, False),
    "stage to the cloud's metadata": (TALKER, AddressPeer("169.254.169.254"), 80, False),
    "stage to the API server": (TALKER, NODE, 6443, False),
}


@each_row("source, destination, port, allowed", MATRIX.values(), ids=MATRIX)
def test_matrix(source: Peer, destination: Peer, port: int, allowed: bool) -> None:
    assert is_allowed(policies_of(build_all(PIPELINE)), source, destination, port) is allowed


@each_row("protocol", ["UDP", "TCP"])
@each_row(
    "resolver, allowed",
    [
        (RESOLVER, True),
        (NODE, True),
        (AddressPeer("169.254.20.10"), True),
        (AddressPeer("fd00::a"), True),
        (HUB, False),
        (AddressPeer("2001:db8::53"), False),
    ],
    ids=["pod", "node", "node-local cache", "IPv6", "outside", "outside by IPv6"],
)
@each_row("stage", [THINKER, TALKER, TOKEN2WAV], ids=["thinker", "talker", "token2wav"])
def test_names_are_resolved_within_the_network(stage: Peer, resolver: Peer, allowed: bool, protocol: str) -> None:
    policies = policies_of(build_all(PIPELINE))
    assert is_allowed(policies, stage, resolver, 53, protocol) is allowed
    assert not is_allowed(policies, stage, resolver, 5353, protocol)


@pytest.mark.parametrize("protocol", ["UDP", "TCP"])
def test_openshifts_resolvers_listen_on_another_port(protocol: str) -> None:
    policies = policies_of(build_all(PIPELINE))
    for stage in (THINKER, TALKER, TOKEN2WAV):
        assert is_allowed(policies, stage, PodPeer("openshift-dns"), 5353, protocol)


class TestDownload:
    """Egress to the hub is allowed only if the model's uri needs it."""

    @pytest.mark.parametrize(
        ("uri", "allowed"), [("hf://org/model", True), ("pvc://models/m", False), ("file:///m", False)]
    )
    def test_by_scheme(self, uri: str, allowed: bool) -> None:
        pipeline = make_pipeline(model={"uri": uri})
        policies = policies_of(build_all(pipeline))
        revision = compute_revision(pipeline, SETTINGS.default_image)
        for stage in ("thinker", "talker", "token2wav"):
            assert is_allowed(policies, pods(stage, revision), HUB, 443) is allowed
            assert is_allowed(policies, pods(stage, revision), AddressPeer("2001:db8::5"), 443) is allowed
            assert not is_allowed(policies, pods(stage, revision), HUB, 80)
            for metadata in ("169.254.169.254", "fe80::a9fe:a9fe", "fd00:ec2::254"):
                assert not is_allowed(policies, pods(stage, revision), AddressPeer(metadata), 443)

    @pytest.mark.parametrize(
        ("endpoint", "port"),
        [("https://hub.example", 443), ("http://hub.example", 80), ("http://hub.models.svc:8080/x", 8080)],
    )
    def test_a_mirror_may_be_a_pod_and_has_a_port(self, endpoint: str, port: int) -> None:
        settings = BuildSettings(default_image=SETTINGS.default_image, hub_endpoint=endpoint)
        pipeline = make_pipeline(model={"uri": "hf://org/model"})
        policies = policies_of(build_all(pipeline, settings))
        revision = compute_revision(pipeline, settings.default_image)
        assert is_allowed(policies, pods("talker", revision), PodPeer("mirror"), port)
        assert not is_allowed(policies, pods("talker", revision), PodPeer("mirror"), port + 1)

    @pytest.mark.parametrize(
        ("uri", "port"),
        [("oci://r.example/omni:v1", 443), ("oci://registry.models:5000/a/omni@sha256:" + "a" * 64, 5000)],
    )
    def test_a_registry_may_be_a_pod_and_has_a_port(self, uri: str, port: int) -> None:
        settings = BuildSettings(default_image=SETTINGS.default_image, hub_endpoint="http://hub.models.svc:8080/x")
        pipeline = make_pipeline(model={"uri": uri})
        policies = policies_of(build_all(pipeline, settings))
        revision = compute_revision(pipeline, settings.default_image)
        for peer in (PodPeer("registry"), HUB):
            assert is_allowed(policies, pods("talker", revision), peer, port)
            assert not is_allowed(policies, pods("talker", revision), peer, port + 1)
        assert not is_allowed(policies, pods("talker", revision), PodPeer("mirror"), 8080)


def test_a_collector_is_reached_where_one_is_named() -> None:
    """A pipeline's collector replaces the operator's. Only its port is opened, and only inside the cluster network."""
    settings = BuildSettings(default_image=SETTINGS.default_image, otlp_endpoint="http://collector.o11y.svc:4317")
    for pipeline, port in (
        (make_pipeline(), 4317),
        (make_pipeline(tracing={"otlpEndpoint": "https://other.svc:9999"}), 9999),
    ):
        built = build_all(pipeline, settings)
        revision = compute_revision(pipeline, settings.default_image)
        policies = policies_of(built)
        for stage in ("thinker", "token2wav"):
            assert is_allowed(policies, pods(stage, revision), PodPeer("collector"), port)
            assert not is_allowed(policies, pods(stage, revision), PodPeer("collector"), port + 1)
            assert not is_allowed(policies, pods(stage, revision), HUB, port)
    assert compute_revision(make_pipeline(), "i") == compute_revision(
        make_pipeline(tracing={"otlpEndpoint": "https://other.svc:9999"}), "i"
    )


def test_two_readers_of_one_stage() -> None:
    stages = [*make_stages(), {"name": "caption", "component": "generic/llm", "inputs": [{"from": "thinker"}]}]
    stages[3]["outputs"] = ["Text"]
    pipeline = make_pipeline(stages)
    revision = compute_revision(pipeline, SETTINGS.default_image)
    policies = policies_of(build_all(pipeline))
    thinker, talker, caption = (pods(name, revision) for name in ("thinker", "talker", "caption"))
    assert is_allowed(policies, thinker, talker, 50051)
    assert is_allowed(policies, thinker, caption, 50051)
    assert not is_allowed(policies, talker, caption, 50051)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 15), max_size=15))
def test_in_any_tree_a_stage_is_called_by_its_upstream_only(parents: list[int]) -> None:
    upstream = {index + 1: parent % (index + 1) for index, parent in enumerate(parents)}
    stages = [
        {
            "name": f"s{index}",
            "component": "generic/llm",
            "outputs": ["Text"],
            **({"inputs": [{"from": f"s{upstream[index]}"}]} if index else {}),
        }
        for index in range(len(parents) + 1)
    ]
    pipeline = make_pipeline(stages)
    policies = policies_of(build_all(pipeline))
    peers = [pods(f"s{index}", compute_revision(pipeline, SETTINGS.default_image)) for index in range(len(stages))]
    for caller, source in enumerate(peers):
        for called, destination in enumerate(peers):
            allowed = is_allowed(policies, source, destination, 50051)
            # The entry accepts connections from everywhere, but no stage has egress to it.
            assert allowed is (upstream.get(called) == caller)
    assert [is_allowed(policies, CLIENT, peer, 50051) for peer in peers] == [True, *[False] * len(parents)]


def test_every_pod_of_a_stage_is_selected_and_nobody_else() -> None:
    policies = policies_of(build_all(PIPELINE))
    assert is_allowed(policies, CLIENT, NEIGHBOUR, 1234)
    template = PodPeer(OWNER.namespace, {**names.child_labels(OWNER.name, stage="talker", revision=REVISION)})
    assert not is_allowed(policies, CLIENT, template, 50051)


class TestEvaluation:
    """Rules of networking.k8s.io/v1 that the generated policies use little or not at all."""

    A = PodPeer("one", {"app": "a"}, {"team": "x"}, {"web": 8080})
    B = PodPeer("two", {"app": "b"}, {"team": "y"})

    def policy(self, namespace: str = "one", **spec: Any) -> Manifest:
        return {"metadata": {"namespace": namespace}, "spec": {"podSelector": {}, **spec}}

    def test_without_policies_everything_is_allowed(self) -> None:
        assert is_allowed([], self.A, self.B, 1)

    def test_a_policy_without_rules_denies(self) -> None:
        assert not is_allowed([self.policy()], self.B, self.A, 1)
        assert is_allowed([self.policy()], self.A, self.B, 1)
        assert not is_allowed([self.policy(policyTypes=["Egress"])], self.A, self.B, 1)

    def test_types_follow_the_rules_if_not_given(self) -> None:
        both = self.policy(egress=[{}])
        assert is_allowed([both], self.A, self.B, 1)
        assert not is_allowed([both], self.B, self.A, 1)

    def test_an_empty_rule_allows_all(self) -> None:
        assert is_allowed([self.policy(ingress=[{}])], self.B, self.A, 1)

    def test_one_policy_of_several_is_enough(self) -> None:
        assert is_allowed([self.policy(), self.policy(ingress=[{"ports": [{"port": 5}]}])], self.B, self.A, 5)

    @pytest.mark.parametrize(
        ("ports", "port", "protocol", "allowed"),
        [
            pytest.param([{"port": 5, "endPort": 7}], 6, "TCP", True, id="range"),
            pytest.param([{"port": 5, "endPort": 7}], 8, "TCP", False, id="past the range"),
            pytest.param([{"port": "web"}], 8080, "TCP", True, id="name"),
            pytest.param([{"port": "nope"}], 8080, "TCP", False, id="unknown name"),
            pytest.param([{"protocol": "UDP"}], 9, "UDP", True, id="any port of a protocol"),
            pytest.param([{"protocol": "UDP"}], 9, "TCP", False, id="another protocol"),
        ],
    )
    def test_ports(self, ports: list[Manifest], port: int, protocol: str, allowed: bool) -> None:
        assert is_allowed([self.policy(ingress=[{"ports": ports}])], self.B, self.A, port, protocol) is allowed

    @pytest.mark.parametrize(
        ("peer", "allowed"),
        [
            pytest.param({"namespaceSelector": {"matchLabels": {"team": "y"}}}, True, id="namespace by label"),
            pytest.param({"namespaceSelector": {"matchLabels": {"team": "z"}}}, False, id="another namespace"),
            pytest.param(
                {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "two"}}}, True, id="by name"
            ),
            pytest.param(
                {"podSelector": {"matchLabels": {"app": "b"}}}, False, id="pods of the policy's namespace only"
            ),
            pytest.param({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "b"}}}, True, id="both"),
            pytest.param({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "c"}}}, False, id="and"),
            pytest.param({"ipBlock": {"cidr": "0.0.0.0/0"}}, False, id="an ipBlock matches no pods"),
        ],
    )
    def test_peers(self, peer: Manifest, allowed: bool) -> None:
        assert is_allowed([self.policy(ingress=[{"from": [peer]}])], self.B, self.A, 1) is allowed

    @pytest.mark.parametrize(
        ("expression", "allowed"),
        [
            pytest.param({"key": "app", "operator": "In", "values": ["b"]}, True, id="in"),
            pytest.param({"key": "app", "operator": "NotIn", "values": ["b"]}, False, id="not in"),
            pytest.param({"key": "tier", "operator": "NotIn", "values": ["b"]}, True, id="not in, absent"),
            pytest.param({"key": "app", "operator": "Exists"}, True, id="exists"),
            pytest.param({"key": "app", "operator": "DoesNotExist"}, False, id="does not exist"),
        ],
    )
    def test_expressions(self, expression: Manifest, allowed: bool) -> None:
        peer = {"namespaceSelector": {}, "podSelector": {"matchExpressions": [expression]}}
        assert is_allowed([self.policy(ingress=[{"from": [peer]}])], self.B, self.A, 1) is allowed

    def test_an_unknown_operator_is_an_error(self) -> None:
        policy = self.policy()
        policy["spec"]["podSelector"] = {"matchExpressions": [{"key": "a", "operator": "Like"}]}
        with pytest.raises(ValueError, match="Like"):
            is_allowed([policy], self.B, self.A, 1)

    def test_addresses(self) -> None:
        policy = self.policy(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}])
        assert is_allowed([policy], AddressPeer("10.2.0.1"), self.A, 1)
        assert not is_allowed([policy], AddressPeer("10.1.0.1"), self.A, 1)
        assert not is_allowed([policy], AddressPeer("2001:db8::1"), self.A, 1)
        assert is_allowed([self.policy(egress=[{"to": [{"podSelector": {}}]}])], AddressPeer("10.1.0.1"), self.B, 1)
