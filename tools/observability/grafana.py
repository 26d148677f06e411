"""Describes Grafana dashboards as small values, and renders them as JSON (schema of Grafana 10 and newer).

The output depends on neither time nor randomness: the same dashboard always gives the same file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.json_text import format_json
from tools.observability.rules.rule import RUNBOOKS, runbook_of

COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """A PromQL expression, and the legend of its lines, in which {{label}} stands for that label's value."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """A graph, number or table of some queries."""

    title: str
    queries: Sequence[Query]
    description: str
    unit: str = "short"
    """Grafana's name of the unit: s, bytes, Bps, reqps, percentunit, short ..."""
    kind: str = "timeseries"
    """timeseries, stat or table."""
    width: int = 8
    height: int = 7
    stacked: bool = False
    thresholds: Sequence[tuple[float, str]] = ()
    """(lowest value, colour of values from there on). Below the first threshold the colour is green."""
    alert: str = ""
    """Name of the alert whose runbook the panel links to; empty for none."""
    only_with: str = ""
    """What must run in the cluster, or be set in a pipeline, for the panel to have data; empty: nothing more."""


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A variable of the dashboard: the user selects label values, by default all."""

    name: str
    query: str
    """label_values(series, label)"""


@dataclass(frozen=True)
class Dashboard:
    """A dashboard."""

    uid: str
    title: str
    description: str
    rows: Sequence[Row]
    variables: Sequence[Variable] = field(default_factory=tuple)
    annotations: Sequence[tuple[str, Query]] = ()
    """(name, query): a mark at each time at which the query has a value, with the query's legend as its text."""

    def panels(self) -> list[Panel]:
        """Returns all panels, in the order of the dashboard."""
        return [panel for row in self.rows for panel in row.panels]


def render_dashboard(dashboard: Dashboard) -> str:
    """Returns the text of the dashboard's JSON file."""
    document = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["omnipipeline"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "annotations": {"list": [_render_annotation(name, query) for name, query in dashboard.annotations]},
        "links": [_link("Runbooks", "")],
        "templating": {"list": [_DATASOURCE, *(_render_variable(item) for item in dashboard.variables)]},
        "panels": _lay_out(dashboard.rows),
    }
    return format_json(document)


_DATASOURCE = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}


def _render_variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "definition": variable.query,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _render_annotation(name: str, query: Query) -> dict[str, Any]:
    return {
        "name": name,
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "blue",
        "expr": query.expr,
        "step": "30s",
        "titleFormat": name,
        "textFormat": query.legend,
    }


def _lay_out(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns the JSON of rows and panels, with each row's panels placed from left to right."""
    placed: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        placed.append(
            {
                "id": len(placed) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top},
            }
        )
        top += 1
        left, height = 0, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left, height = top + height, 0, 0
            position = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            placed.append(_render_panel(panel, len(placed) + 1, position))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return placed


def _render_panel(panel: Panel, number: int, position: dict[str, int]) -> dict[str, Any]:
    steps = [{"color": "green", "value": None}, *({"color": color, "value": at} for at, color in panel.thresholds)]
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults |= {
            "custom": {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 8, "stacking": stacking},
            "min": 0,
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": position,
        **({"links": [_link(f"Runbook of {panel.alert}", runbook_of(panel.alert))]} if panel.alert else {}),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.kind],
        "targets": [_render_target(query, index, panel.kind) for index, query in enumerate(panel.queries)],
    }


def _link(title: str, page: str) -> dict[str, Any]:
    """Returns a link to a page of the runbooks, with each field that Grafana's schema requires."""
    unused = {"tooltip": "", "tags": [], "asDropdown": False, "includeVars": False, "keepTime": False}
    return {"title": title, "type": "link", "icon": "doc", "url": f"{RUNBOOKS}/{page}", "targetBlank": True, **unused}


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "textMode": "auto",
        "orientation": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    },
    "table": {"showHeader": True, "cellHeight": "sm", "frameIndex": 0},
}


def _render_target(query: Query, index: int, kind: str) -> dict[str, Any]:
    instant = kind == "table"
    return {
        "refId": chr(ord("A") + index),
        "datasource": _SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": instant,
        "range": not instant,
        **({"format": "table"} if instant else {}),
    }
