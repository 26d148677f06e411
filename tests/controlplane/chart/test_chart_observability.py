"""Dashboards and alert rules from the chart, rendered by the real helm.

One of the tests uses the flags in docs/observability.md.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.observability.rules.rule import gone

from support.controlplane.charts.helm import CHART, ROOT, Helm
from support.peers.prometheus import RULES, run_promtool

pytestmark = pytest.mark.controlplane

PAGE = (ROOT / "docs" / "observability.md").read_text()


def flags_of_the_page() -> dict[str, Any]:
    """Returns the `--set a.b=true` flags of the page's helm command as chart values."""
    values: dict[str, Any] = {}
    for path, value in re.findall(r"--set (\S+)=(\S+)", PAGE):
        at = values
        *parents, leaf = path.split(".")
        for parent in parents:
            at = at.setdefault(parent, {})
        at[leaf] = yaml.safe_load(value)
    return values


def test_the_command_of_the_page_makes_all_of_it(helm: Helm, tmp_path: Path) -> None:
    """The page's flags render a ServiceMonitor, the shipped dashboards and the shipped alert rules."""
    manifests = helm.template(flags_of_the_page())
    kinds = [item["kind"] for item in manifests]
    assert {"ServiceMonitor", "PrometheusRule"} <= set(kinds)
    pages = [item for item in manifests if item["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
    shipped = {path.name: json.loads(path.read_text()) for path in (CHART / "files" / "dashboards").glob("*.json")}
    found = {name: json.loads(text) for page in pages for name, text in page["data"].items()}
    assert found == {f"omnipipeline-{name}": page for name, page in shipped.items()}
    rule = next(item for item in manifests if item["kind"] == "PrometheusRule")
    service = next(item["metadata"] for item in manifests if item["metadata"]["name"].endswith("-metrics"))
    own = f'absent(omni_operator_leader{{namespace="{service["namespace"]}", job="{service["name"]}"}})'
    rules = rule["spec"]
    assert rules == yaml.safe_load(RULES.read_text().replace(gone("omni_operator_leader"), own))
    assert own in str(rules), "the alert is about this release's operator"
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    run_promtool("check", "rules", tmp_path / "rules.yaml")


def test_none_of_it_is_there_unless_asked_for(helm: Helm) -> None:
    """By default the chart renders no dashboards, alert rules or ServiceMonitor."""
    manifests = helm.template({})
    assert not [item for item in manifests if item["kind"] in ("PrometheusRule", "ServiceMonitor")]
    assert not [item for item in manifests if "grafana_dashboard" in item["metadata"].get("labels", {})]


def test_labels_namespace_and_runbooks_are_the_users(helm: Helm) -> None:
    """Users choose the labels and runbook URLs of alert rules, and the metadata of dashboards."""
    metrics = {
        "prometheusRule": {
            "enabled": True,
            "labels": {"release": "mon"},
            "runbookUrl": "https://wiki.example.com/omni/",
        },
        "dashboards": {
            "enabled": True,
            "namespace": "grafana",
            "labels": {"grafana_dashboard": None, "dashboards": "yes"},
            "annotations": {"grafana_folder": "Speech"},
        },
    }
    manifests = helm.template({"metrics": metrics})
    rule = next(item for item in manifests if item["kind"] == "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "mon"
    urls = [entry["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for entry in group["rules"]]
    assert all(url.startswith("https://wiki.example.com/omni/") for url in urls)
    pages = [item for item in manifests if item["metadata"].get("labels", {}).get("dashboards") == "yes"]
    assert len(pages) == 3
    for page in pages:
        assert page["metadata"]["namespace"] == "grafana"
        assert page["metadata"]["annotations"] == {"grafana_folder": "Speech"}
        assert "grafana_dashboard" not in page["metadata"]["labels"]


def test_the_alert_on_the_operator_is_the_shipped_one_without_the_charts_own_labels(helm: Helm) -> None:
    """Without the chart's ServiceMonitor, or with relabelings, the labels of the operator's series are not known."""
    shipped = yaml.safe_load(RULES.read_text())
    for monitor in ({"enabled": False}, {"enabled": True, "relabelings": [{"targetLabel": "job", "replacement": "x"}]}):
        manifests = helm.template({"metrics": {"prometheusRule": {"enabled": True}, "serviceMonitor": monitor}})
        assert next(item["spec"] for item in manifests if item["kind"] == "PrometheusRule") == shipped


def test_the_gateway_is_scraped_by_its_headless_service(helm: Helm) -> None:
    values: dict[str, Any] = {
        "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "mon"}}},
        "gateway": {"enabled": True, "networkPolicy": {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}},
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]},
    }
    manifests = helm.template(values)
    monitors = {item["metadata"]["name"]: item for item in manifests if item["kind"] == "ServiceMonitor"}
    (name,) = (name for name in monitors if name.endswith("-gateway"))
    monitor = monitors[name]
    assert monitor["metadata"]["labels"]["release"] == "mon"
    assert monitor["spec"]["endpoints"] == [{"port": "http", "interval": "30s"}]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [item for item in manifests if item["kind"] == "Service"]
    (service,) = (item for item in services if wanted <= item["metadata"]["labels"].items())
    assert service["metadata"]["name"] == f"{name}-replicas"
    assert [port["name"] for port in service["spec"]["ports"]] == ["http"]
    policy = next(item for item in manifests if item["kind"] == "NetworkPolicy" and item["metadata"]["name"] == name)
    assert policy["spec"]["ingress"][0]["from"] == [
        {"podSelector": {"matchLabels": {"app": "web"}}},
        {"namespaceSelector": {"matchLabels": {"team": "monitoring"}}},
    ]
    values["gateway"]["tlsSecret"] = "gateway-tls"
    monitor = next(
        item for item in helm.template(values) if item["kind"] == "ServiceMonitor" and item["metadata"]["name"] == name
    )
    assert monitor["spec"]["endpoints"][0]["scheme"] == "https"
    assert not [item for item in helm.template({"gateway": {"enabled": True}}) if item["kind"] == "ServiceMonitor"]


def test_only_what_the_chart_scrapes_may_be_missed(helm: Helm) -> None:
    """With its own ServiceMonitors the chart's rules fire for its operator and gateway while these are not scraped.
    Without them nothing fires for what was never scraped."""
    rule = {"prometheusRule": {"enabled": True}}
    values: dict[str, Any] = {"gateway": {"enabled": True}, "metrics": {**rule, "serviceMonitor": {"enabled": True}}}
    manifests = helm.template(values)
    rules = str(next(item["spec"] for item in manifests if item["kind"] == "PrometheusRule"))
    service = next(item["metadata"] for item in manifests if item["metadata"]["name"].endswith("-gateway-replicas"))
    own = f'absent(omni_gateway_inflight_requests{{namespace="{service["namespace"]}", job="{service["name"]}"}})'
    assert own in rules
    assert rules.count("absent(") == 2
    bare = helm.template({"gateway": {"enabled": True}, "metrics": rule})
    assert "absent(" not in str(next(item["spec"] for item in bare if item["kind"] == "PrometheusRule"))


def test_dashboards_link_to_the_users_runbooks(helm: Helm) -> None:
    metrics = {"prometheusRule": {"runbookUrl": "https://wiki.example.com/omni"}, "dashboards": {"enabled": True}}
    pages = [item for item in helm.template({"metrics": metrics}) if "grafana_dashboard" in str(item["metadata"])]
    text = "".join(page for item in pages for page in item["data"].values())
    assert "https://wiki.example.com/omni/pipeline.md#omnipipelineerrorratiohigh" in text
    assert "omnipipeline.io/docs/runbooks" not in text
