"""Every panel of the pipelines' dashboard has data when a real Prometheus scrapes a paced pipeline under load.

With OMNIPIPE_SCREENSHOTS=docs/images the test also writes the docs' picture, and the load runs for three minutes
instead of twenty seconds.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from observability.picture import Line, draw_dashboard
from PIL import Image

from omni_cli.local.engines import find_model
from omni_proto.client import OmniClient, OmniRequestError
from omni_proto.pipeline import load_pipeline, resolve_model_path
from support.operator.operator_pipelines import build_all, labels_of_pods, pick
from support.peers.prometheus import PrometheusProcess, expand, list_targets, scrape_config
from support.processes.pipelines import SAMPLES, run_pipeline

pytestmark = [pytest.mark.pipeline, pytest.mark.full]

DASHBOARD = Path(__file__).parents[3] / "helm" / "omnipipeline" / "files" / "dashboards" / "pipelines.json"
SPEAK = {"thinker": {"max_tokens": 60}, "talker": {"max_tokens": 300}}
CALLERS = (2, 6, 10)
"""Concurrent clients in each third of the time."""


def call(endpoint: str, until: float, number: int) -> None:
    """Sends one request after another until the time `until`. Every tenth client names a stage that does not exist."""
    with OmniClient(endpoint) as client:
        while time.time() < until:
            try:
                nobody = {"nobody": {"max_tokens": 1}}
                client.run(text="Say something.", sampling=nobody if number % 10 == 9 else SPEAK, timeout=60)
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


def test_the_dashboard_with_data_in_it(tmp_path: Path) -> None:
    folder = os.environ.get("OMNIPIPE_SCREENSHOTS")
    seconds = 180.0 if folder else 20.0
    pipeline = load_pipeline(SAMPLES / "sim-omni.yaml")
    children = build_all(pipeline)
    model = find_model(Path(resolve_model_path(pipeline)))
    with run_pipeline(SAMPLES / "sim-omni.yaml", model, tmp_path) as running:
        targets = list_targets(running.stages, labels_of_pods(children))
        with PrometheusProcess(tmp_path, [scrape_config("sim", targets, pick(children, "PodMonitor"))]) as prometheus:
            begin = time.time()
            load(running.endpoint, seconds)
            end = time.time()
            empty: list[str] = []

            def ask(expr: str) -> list[Line]:
                window = {"__rate_interval": "15s" if folder else "10s"}
                found = prometheus.query_range(expand(expr, window), begin, end, max(1.0, seconds / 120))
                if not found:
                    empty.append(expr)
                return [
                    Line(series["metric"], [at for at, _ in series["values"]], [float(v) for _, v in series["values"]])
                    for series in found
                ]

            out = Path(folder or tmp_path) / "dashboard.png"
            draw_dashboard(json.loads(DASHBOARD.read_text()), ask, out, lines=45 if folder else None)
    assert empty == []
    picture = Image.open(out)
    assert picture.width == 1190
    if folder:
        picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(out, optimize=True)
