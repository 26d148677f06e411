"""Generates the dashboards, the alerts and the list of metrics. Each has one source here.

    operator_dashboard.py, pipeline_dashboard.py, stage_rows.py -> helm/omnipipeline/files/dashboards/*.json
    alerts.py                                                   -> helm/omnipipeline/files/rules/omnipipeline.yaml
    reference.py                                                -> the tables of docs/observability.md

`python -m tools.observability` writes them (`make dashboards`); `--check` lists the stale ones. This package is only
for development: no package of the product imports it. The tests run every query against a real Prometheus.
"""
