"""The stable Services of the entry, the headless Services of stages, and their selectors."""

from __future__ import annotations

import pytest

from omni_operator import names
from omni_operator.desired.build_settings import BuildSettings
from omni_operator.desired.children import build_shared
from omni_operator.desired.revision import compute_revision
from omni_operator.kinds import key_of
from omni_proto.stage_config import parse_stage_config
from support.operator.operator_pipelines import OWNER, SETTINGS, build_all, build_set, make_pipeline, pick


class TestServices:
    """The Services of a pipeline of three stages."""

    def test_entry_selects_the_serving_revision_by_role(self) -> None:
        headless, entry = build_shared(OWNER, "abc1234")[1:]
        assert entry["metadata"]["name"] == "demo"
        assert headless["metadata"]["name"] == "demo-headless"
        assert headless["spec"]["clusterIP"] == "None"
        for service in (entry, headless):
            assert names.serving_revision(service["spec"]["selector"]) == "abc1234"
            assert service["spec"]["selector"]["omnipipeline.io/role"] == "entry"
            assert "omnipipeline.io/stage" not in service["spec"]["selector"]

    @pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "TLS"])
    def test_app_protocol_shows_whether_a_port_has_tls(self, tls: bool) -> None:
        """A Service's appProtocol tells service meshes whether its port has TLS."""
        entry = {"tls": {"secretName": "cert"}} if tls else {}
        children = [*build_shared(OWNER, "abc1234", tls=tls), *build_set(make_pipeline(entry=entry))]
        told = {
            child["metadata"]["name"].rpartition("-")[0] or child["metadata"]["name"]: port["appProtocol"]
            for child in children
            if child["kind"] == "Service"
            for port in child["spec"]["ports"]
        }
        ours = "https" if tls else "kubernetes.io/h2c"
        assert told == {
            **dict.fromkeys(("demo", "demo-thinker"), ours),
            **dict.fromkeys(("demo-talker", "demo-token2wav"), "kubernetes.io/h2c"),
        }

    def test_while_nothing_serves_no_pod_is_selected(self) -> None:
        children = [*build_shared(OWNER, None), *build_set(make_pipeline())]
        entry = next(child for child in children if key_of(child) == ("Service", "demo"))
        assert names.serving_revision(entry["spec"]["selector"]) is None
        for deployment in (child for child in children if child["kind"] == "Deployment"):
            labels = deployment["spec"]["template"]["metadata"]["labels"]
            assert not entry["spec"]["selector"].items() <= labels.items()

    def test_one_stage_of_the_set_is_the_entry(self) -> None:
        children = build_all(make_pipeline())
        selector = next(child for child in children if key_of(child) == ("Service", "demo"))["spec"]["selector"]
        matching = [
            child["metadata"]["labels"]["omnipipeline.io/stage"]
            for child in children
            if child["kind"] == "Deployment"
            and selector.items() <= child["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert matching == ["thinker"]

    def test_each_upstream_is_configured_with_the_service_of_its_own_revision(self) -> None:
        pipeline = make_pipeline()
        children = build_all(pipeline)
        revision = compute_revision(pipeline, SETTINGS.default_image)
        config = parse_stage_config(pick(children, "ConfigMap", "thinker")["data"]["stage.yaml"])
        target = f"dns:///demo-talker-{revision}.models.svc.cluster.local.:50051"
        assert [edge.target for edge in config.downstream] == [target]
        service = next(child for child in children if child["metadata"]["name"] == f"demo-talker-{revision}")
        assert service["kind"] == "Service"
        assert service["spec"]["selector"] == names.stage_selector("demo", "talker", revision)

    def test_another_cluster_domain(self) -> None:
        children = build_all(make_pipeline(), BuildSettings(cluster_domain="corp.example"))
        assert ".svc.corp.example.:50051" in pick(children, "ConfigMap", "thinker")["data"]["stage.yaml"]
