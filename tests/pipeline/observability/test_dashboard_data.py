"""Every panel of the pipelines' dashboard has data when a real Prometheus scrapes a paced pipeline under load."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tools.observability.pipeline_dashboard import PIPELINE_DASHBOARD

from omni_cli.commands.run import find_models
from omni_proto.client import OmniClient, OmniRequestError
from omni_proto.pipeline import load_pipeline
from support.operator.operator_pipelines import build_all, labels_of_pods, pick
from support.peers.prometheus import PrometheusProcess, list_targets, panel_queries, scrape_config
from support.processes.pipelines import SAMPLES, run_pipeline
from support.processes.polling import PATIENCE_S

pytestmark = [pytest.mark.pipeline, pytest.mark.full]

SPEAK = {"thinker": {"max_tokens": 60}, "talker": {"max_tokens": 300}}
CALLERS = (2, 6, 10)
"""Concurrent clients in each third of the time."""
SECONDS = 20.0


def call(endpoint: str, until: float, number: int) -> None:
    """Sends one request after another until the time `until`. Every tenth client names a stage that does not exist."""
    with OmniClient(endpoint) as client:
        while time.time() < until:
            try:
                nobody = {"nobody": {"max_tokens": 1}}
                client.run(text="Say something.", sampling=nobody if number % 10 == 9 else SPEAK, timeout=PATIENCE_S)
            except OmniRequestError:
                time.sleep(2)


def load(endpoint: str, seconds: float) -> None:
    """Runs clients for `seconds`. They start in three groups, and all run until the end."""
    begin = time.time()
    threads = []
    for step, count in enumerate(CALLERS):
        time.sleep(max(0.0, begin + step * seconds / len(CALLERS) - time.time()))
        for number in range(len(threads), count):
            threads.append(threading.Thread(target=call, args=(endpoint, begin + seconds, number)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def test_every_panel_has_data_under_load(tmp_path: Path) -> None:
    pipeline = load_pipeline(SAMPLES / "sim-omni.yaml")
    model = Path(find_models(pipeline)["thinker"])
    queries = panel_queries(PIPELINE_DASHBOARD, {"__rate_interval": "10s"})
    with run_pipeline(SAMPLES / "sim-omni.yaml", model, tmp_path) as running:
        children = build_all(pipeline)
        targets = list_targets(running.stages, labels_of_pods(children))
        with PrometheusProcess(tmp_path, [scrape_config("sim", targets, pick(children, "PodMonitor"))]) as prometheus:
            begin = time.time()
            load(running.endpoint, SECONDS)
            end = time.time()
            empty = [asked for asked in queries if not prometheus.query_range(asked.expr, begin, end, 1.0)]
    assert empty == []
