"""Generates the dashboards, the alerts and the list of metrics. Each has one source here.

    *_dashboard.py, *_rows.py -> helm/omnipipeline/files/dashboards/*.json
    rules/, alerts.py         -> helm/omnipipeline/files/rules/omnipipeline.yaml
    reference.py              -> the tables of docs/reference/metrics.md

`python -m tools.observability` writes them (`make dashboards`); `--check` lists the stale ones. This package is only
for development: no package of the product imports it. The tests run every query against a real Prometheus.
"""
