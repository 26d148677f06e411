"""`python -m tools.observability` writes the generated files; with `--check` it only lists those that are stale, and
fails if there are any."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.observability.alerts import GROUPS, list_alerts
from tools.observability.gateway_dashboard import GATEWAY_DASHBOARD
from tools.observability.grafana import render_dashboard
from tools.observability.operator_dashboard import OPERATOR_DASHBOARD
from tools.observability.pipeline_dashboard import PIPELINE_DASHBOARD
from tools.observability.reference import (
    collect_gateway_metrics,
    collect_operator_metrics,
    collect_stage_metrics,
    fill_page,
    render_tables,
    render_vllm_table,
)
from tools.observability.rules.rule import render_rules

ROOT = Path(__file__).parents[2]
CHART_FILES = ROOT / "helm" / "omnipipeline" / "files"
ALERTS_PAGE = ROOT / "docs" / "observability.md"
METRICS_PAGE = ROOT / "docs" / "reference" / "metrics.md"
DASHBOARDS = {"pipelines": PIPELINE_DASHBOARD, "operator": OPERATOR_DASHBOARD, "gateway": GATEWAY_DASHBOARD}


def render() -> dict[Path, str]:
    """Returns the generated files and their contents."""
    files = {CHART_FILES / "dashboards" / f"{name}.json": render_dashboard(page) for name, page in DASHBOARDS.items()}
    files[CHART_FILES / "rules" / "omnipipeline.yaml"] = render_rules(GROUPS)
    tables = {
        "stage metrics": render_tables(collect_stage_metrics()),
        "operator metrics": render_tables(collect_operator_metrics()),
        "gateway metrics": render_tables(collect_gateway_metrics()),
        "vllm metrics": render_vllm_table(),
    }
    files[METRICS_PAGE] = fill_page(METRICS_PAGE.read_text(), tables)
    files[ALERTS_PAGE] = fill_page(ALERTS_PAGE.read_text(), {"alerts": render_alerts()})
    return files


def render_alerts() -> str:
    """Returns a Markdown table of the alerts."""
    rows = [
        f"| [{alert.name}](runbooks/{alert.runbook}) | {alert.severity} | {alert.wait} | {alert.when} |"
        for alert in list_alerts()
    ]
    return "\n".join(["| alert | severity | after | when |", "|---|---|---|---|", *rows])


def main(arguments: list[str]) -> int:
    """Write the files, or check them with --check. Returns 1 if --check finds a stale file, else 0."""
    check = "--check" in arguments
    stale = []
    for path, content in render().items():
        if path.exists() and path.read_text() == content:
            continue
        stale.append(path.relative_to(ROOT).as_posix())
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    if stale and check:
        sys.stderr.write(f"stale: {', '.join(stale)}; run `make dashboards`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
