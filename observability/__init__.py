"""Makes what operators of pipelines use: dashboards, alerts, and the list of metrics. Each has one source here.

    operator_dashboard.py, pipeline_dashboard.py, stage_rows.py -> helm/omnipipeline/files/dashboards/*.json
    alerts.py                                                   -> helm/omnipipeline/files/rules/omnipipeline.yaml
    reference.py                                                -> the tables of docs/observability.md

`python -m observability` writes them (`make dashboards`), `--check` says what is stale. Development only: no package of
the product imports this. Every query here is run against a real Prometheus by the tests.
"""
