"""The files that tools/observability/ generates are up to date, and their queries, metrics and runbook pages agree."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
from tools.observability.__main__ import CHART_FILES, DASHBOARDS, ROOT, main
from tools.observability.alerts import GROUPS, list_alerts
from tools.observability.grafana import COLUMNS, Dashboard, render_dashboard
from tools.observability.reference import (
    VLLM,
    collect_gateway_metrics,
    collect_operator_metrics,
    collect_stage_metrics,
    fill_page,
    sample_name,
)
from tools.observability.rules.rule import Alert, render_rules

from support.peers.prometheus import alert_signals, expand, is_about_operator, panel_queries

RUNBOOKS = ROOT / "docs" / "runbooks"
SECTIONS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
PAGES = list(DASHBOARDS.values())
by_uid = pytest.mark.parametrize("dashboard", PAGES, ids=lambda page: page.uid)
by_name = pytest.mark.parametrize("alert", list_alerts(), ids=lambda alert: alert.name)
_NAME = re.compile(r"\b(?:omni_|vllm:|process_)[a-z0-9_:]+")


def known_series() -> set[str]:
    families = [*collect_stage_metrics(), *collect_operator_metrics(), *collect_gateway_metrics()]
    samples = {sample.name for family in families for sample in family.samples}
    return samples | set(VLLM) | {sample_name(family) for family in families} | {"process_start_time_seconds"}


def test_generated_files_are_not_stale(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


@by_uid
def test_panels_and_variables_of_a_page_are_consistent(dashboard: Dashboard) -> None:
    """Panels have unique ids and do not overlap, and their queries use only variables that are defined."""
    page = json.loads(render_dashboard(dashboard))
    assert page["uid"] == dashboard.uid
    assert len(page["uid"]) <= 40
    numbers = [panel["id"] for panel in page["panels"]]
    assert numbers == sorted(set(numbers))
    boxes = [panel["gridPos"] for panel in page["panels"]]
    assert all(box["x"] + box["w"] <= COLUMNS for box in boxes)
    for one, other in combinations(boxes, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y, (one, other)
    variables = [item["name"] for item in page["templating"]["list"]]
    assert variables[:2] == ["datasource", "namespace"]
    asked = {
        name
        for panel in dashboard.panels()
        for query in panel.queries
        for name in re.findall(r"\$([a-z_]\w*)", query.expr)
    }
    assert asked <= {*variables, "__rate_interval", "__range"}
    assert render_dashboard(dashboard) == render_dashboard(dashboard)


def test_the_pipeline_page_can_be_narrowed() -> None:
    """The pipelines dashboard has variables to select a namespace, a pipeline and a stage."""
    names = [variable.name for variable in DASHBOARDS["pipelines"].variables]
    assert names == ["namespace", "pipeline", "stage"]


@by_uid
def test_panels_are_described_and_ask_for_series_that_exist(dashboard: Dashboard) -> None:
    """Every panel has a description, and its queries use only series that are exported."""
    series = known_series() | {"process_resident_memory_bytes"}
    for panel in dashboard.panels():
        assert panel.description.endswith("."), panel.title
        for query in panel.queries:
            assert set(_NAME.findall(query.expr)) <= series, (panel.title, query.expr)


def read_runbooks() -> dict[str, str]:
    """Returns each section of the pages by its link."""
    pages = {path.name: path.read_text().split("\n## ")[1:] for path in RUNBOOKS.glob("*.md")}
    return {f"{page}#{text.partition(chr(10))[0].lower()}": text for page, texts in pages.items() for text in texts}


@by_uid
def test_panels_link_to_runbooks_that_exist(dashboard: Dashboard) -> None:
    linked = {panel.alert for panel in dashboard.panels() if panel.alert}
    assert linked <= {alert.name for alert in list_alerts()}
    page = json.loads(render_dashboard(dashboard))
    urls = [link["url"] for panel in page["panels"] for link in panel.get("links", [])]
    assert {url.rpartition("/")[2] for url in urls} <= {alert.runbook for alert in list_alerts()}


@by_name
def test_an_alert_asks_for_series_that_exist_and_has_its_page(alert: Alert) -> None:
    """An alert uses only series that are exported, and its runbook has the four standard sections."""
    names = set(_NAME.findall(alert.expr))
    assert names
    assert names <= known_series()
    assert re.findall(r"^\*\*(\w+)\.\*\*", read_runbooks()[alert.runbook], re.MULTILINE) == SECTIONS
    assert alert.severity in ("critical", "warning")
    assert alert.summary.endswith(".")
    assert alert.description.endswith((".", "}}."))


def test_there_are_no_other_runbooks() -> None:
    assert read_runbooks().keys() == {alert.runbook for alert in list_alerts()}


def test_no_query_combines_stages_and_the_operator() -> None:
    """No query combines series of stages with series of the operator, because other tests scrape the two separately."""
    questions = [
        *alert_signals(list_alerts(), have=["TLS", "objectives", "audio"]),
        *(q for page in PAGES for q in panel_queries(page)),
    ]
    both = [
        q.expr
        for q in questions
        if is_about_operator(q.expr) and re.search(r"\b(omni_stage|omni_pipeline|vllm:)", q.expr)
    ]
    assert both == []


def test_runbook_links_begin_with_the_given_url() -> None:
    """The base URL of the runbooks is a value of the chart, and every alert's link begins with it."""
    text = render_rules(GROUPS, "https://wiki.example.com/omni")
    assert text.count("https://wiki.example.com/omni/") == len(list_alerts())


def test_variables_are_filled_in() -> None:
    assert expand('x{n=~"$namespace"}[$__rate_interval]') == 'x{n=~".*"}[5m]'
    assert expand('x{n=~"$namespace"}', {"namespace": "models"}) == 'x{n=~"models"}'


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    assert fill_page("<!-- a -->\nold\n<!-- /a -->\n", {"a": "new"}) == "<!-- a -->\n\nnew\n\n<!-- /a -->\n"
    with pytest.raises(ValueError, match="has no <!-- b -->"):
        fill_page("nothing", {"b": "x"})


def test_files_lie_where_the_chart_reads_them() -> None:
    assert sorted(path.name for path in (CHART_FILES / "dashboards").glob("*")) == [
        "gateway.json",
        "operator.json",
        "pipelines.json",
    ]
    assert [path.name for path in Path(CHART_FILES / "rules").glob("*")] == ["omnipipeline.yaml"]
