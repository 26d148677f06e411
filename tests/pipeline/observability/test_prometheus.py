"""A real Prometheus scrapes three real stages with the relabelling of the operator's PodMonitor.

Under traffic every panel and every alert about stages has data, and no alert fires. tests/controlplane tests the alerts
about the operator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator

import pytest
from tools.observability.alerts import list_alerts
from tools.observability.pipeline_dashboard import PIPELINE_DASHBOARD

from omni_proto.client import OmniClient, OmniRequestError
from omni_proto.pipeline import parse_pipeline
from omni_proto.pod_contract import PIPELINE_LABEL, STAGE_LABEL
from omni_proto.stage_config import Listen, ServerTls
from support.operator.operator_pipelines import build_all, labels_of_pods, pick
from support.peers.certificates import DAY, Authority, MountedSecret, tls_files
from support.peers.metric_rules import find_bad_metrics, scrape, series_of
from support.peers.prometheus import (
    Asked,
    PodTarget,
    PrometheusProcess,
    alert_signals,
    find_broken_rules,
    find_empty_variables,
    find_unanswered,
    is_about_operator,
    list_targets,
    panel_queries,
    runbook_queries,
    scrape_config,
)
from support.processes.pipelines import SAMPLES, RunningPipeline
from support.processes.polling import PATIENCE_S, wait_until
from support.processes.stage_processes import CHEAP, StageProcess, chain_configs

pytestmark = pytest.mark.pipeline

ALERTS = [alert for alert in list_alerts() if not is_about_operator(alert.expr)]
SPEAK = {"talker": {"temperature": 0, "repetition_penalty": 1, "max_tokens": 24}}
ANSWERED = 'sum(omni_pipeline_requests_total{pipeline="tiny-omni", code="OK"})'
REFUSED = 'omni_pipeline_requests_total{pipeline="tiny-omni", code="INVALID_ARGUMENT", reason="INVALID_REQUEST"}'
EDGE_ENDS = (
    'sum(omni_stage_edge_bytes_total{stage="thinker", peer="talker", direction="sent"})',
    'sum(omni_stage_edge_bytes_total{stage="talker", peer="thinker", direction="received"})',
)
REQUESTS = 4
SCRAPE_S = 1.0


@pytest.fixture(scope="module")
def tls_entry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageProcess]:
    """An entry stage with a TLS certificate and a fake engine."""
    folder = tmp_path_factory.mktemp("tls")
    secret = MountedSecret(folder / "secret", tls_files(Authority("ca").issue(lasts=30 * DAY)))
    listen = Listen(
        host="127.0.0.1", grpc_port=0, health_port=0, metrics_port=0, tls=ServerTls(directory=str(secret.directory))
    )
    config = chain_configs(dict.fromkeys(("thinker", "talker", "token2wav"), 1))["thinker"]
    with StageProcess([config.model_copy(update={"listen": listen})], folder, CHEAP) as process:
        yield process.start()


@pytest.fixture(scope="module")
def prometheus(
    tiny_pipeline: RunningPipeline, tls_entry: StageProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusProcess]:
    """A Prometheus that scrapes the pipeline and an entry with TLS.

    Since Prometheus started, the pipeline has answered some requests and refused one.
    """
    children = build_all(parse_pipeline((SAMPLES / "tiny-omni.yaml").read_text()))
    targets = list_targets(tiny_pipeline.stages, labels_of_pods(children))
    of_tls = {**targets[0].labels, PIPELINE_LABEL: "secure", STAGE_LABEL: "thinker"}
    targets.append(PodTarget(f"127.0.0.1:{tls_entry.ports['thinker']['metrics']}", "models", "secure-0", of_tls))
    configs = [scrape_config("models/tiny-omni", targets, pick(children, "PodMonitor"))]
    with PrometheusProcess(tmp_path_factory.mktemp("prometheus"), configs) as running:
        wait_for(running, "count(omni_stage_ready == 1)", len(targets))
        before, refused = value_of(running, ANSWERED), value_of(running, REFUSED)
        send_requests(tiny_pipeline.endpoint)
        wait_for(running, ANSWERED, before + REQUESTS)
        wait_for(running, REFUSED, refused + 1)
        yield running


def send_requests(endpoint: str) -> None:
    with OmniClient(endpoint) as client:
        for seed in range(REQUESTS):
            assert client.run(raw_text="Say hello.", seed=seed, sampling=SPEAK, timeout=PATIENCE_S).audio
            time.sleep(1.0)  # rates need samples from before and after
        with pytest.raises(OmniRequestError):
            client.run(raw_text="Say hello.", sampling={"nobody": {"max_tokens": 1}}, timeout=PATIENCE_S)


def value_of(prometheus: PrometheusProcess, expr: str) -> float:
    (sample,) = prometheus.query(expr)
    return float(sample["value"][1])


def wait_for(prometheus: PrometheusProcess, expr: str, least: float) -> None:
    def has_come() -> bool:
        found = prometheus.query(expr)
        return bool(found) and float(found[0]["value"][1]) >= least

    wait_until(has_come, PATIENCE_S, lambda: f"{expr} is {prometheus.query(expr)}: {prometheus.targets()}")


def wait_answered(prometheus: PrometheusProcess, questions: Iterable[Asked]) -> None:
    """Waits until all are answered: the scrape of a stage may be late on a busy machine."""
    asked = list(questions)
    wait_until(lambda: not find_unanswered(prometheus, asked), why=lambda: find_unanswered(prometheus, asked))


def test_every_panel_has_an_answer(prometheus: PrometheusProcess) -> None:
    wait_answered(prometheus, panel_queries(PIPELINE_DASHBOARD))


def test_panels_answer_for_one_pipeline_and_stage(prometheus: PrometheusProcess) -> None:
    chosen = {"namespace": "models", "pipeline": "tiny-omni", "stage": "thinker"}
    wait_answered(prometheus, panel_queries(PIPELINE_DASHBOARD, chosen))
    nobody = panel_queries(PIPELINE_DASHBOARD, {**chosen, "pipeline": "another"})
    assert len(find_unanswered(prometheus, nobody)) == len(nobody)


def test_there_is_something_to_choose(prometheus: PrometheusProcess) -> None:
    wait_until(lambda: not find_empty_variables(prometheus, PIPELINE_DASHBOARD))
    assert prometheus.label_values("stage", "omni_stage_info") == ["talker", "thinker", "token2wav"]


def test_every_alert_watches_something_and_none_fires(prometheus: PrometheusProcess) -> None:
    wait_answered(prometheus, alert_signals(ALERTS, have=["TLS"]))
    wait_until(lambda: not find_broken_rules(prometheus, ALERTS), why=lambda: find_broken_rules(prometheus, ALERTS))


def test_queries_of_runbooks_have_an_answer(prometheus: PrometheusProcess) -> None:
    questions = runbook_queries(NAMESPACE="models", NAME="tiny-omni")
    assert len(questions) >= 2
    wait_answered(prometheus, questions)


def test_both_ends_of_an_edge_count_the_same_bytes(
    prometheus: PrometheusProcess, tiny_pipeline: RunningPipeline
) -> None:
    # Only bytes from now on: a request that another test cancelled may have been counted at one end only.
    before, answered = [value_of(prometheus, end) for end in EDGE_ENDS], value_of(prometheus, ANSWERED)
    send_requests(tiny_pipeline.endpoint)
    wait_for(prometheus, ANSWERED, answered + REQUESTS)
    wait_for(prometheus, EDGE_ENDS[1], before[1] + 1)
    time.sleep(2 * SCRAPE_S)

    def grown() -> list[float]:
        return [value_of(prometheus, end) - earlier for end, earlier in zip(EDGE_ENDS, before, strict=True)]

    # A scrape of one of the two stages may be late.
    wait_until(lambda: 0 < grown()[0] == grown()[1], PATIENCE_S, grown)


def test_what_the_figures_say(prometheus: PrometheusProcess) -> None:
    wait_for(prometheus, f"increase({REFUSED}[5m])", 1e-9)  # a rate sees the first error
    whole = value_of(prometheus, "sum(omni_pipeline_request_seconds_sum)")
    assert 0 < value_of(prometheus, "sum(omni_pipeline_first_text_seconds_sum)") < whole
    assert 0 < value_of(prometheus, "sum(omni_pipeline_first_audio_seconds_sum)") < whole
    entries = 'count(omni_pipeline_request_seconds_count{pipeline="tiny-omni"})'
    assert value_of(prometheus, entries) == 1, "of the entry alone"


def test_every_stage_reports_its_time_in_the_queue(prometheus: PrometheusProcess) -> None:
    asked = 'sum by (stage) (omni_stage_queue_seconds_count{pipeline="tiny-omni"}) > 0'
    stages = {"thinker", "talker", "token2wav"}
    wait_until(lambda: {sample["metric"]["stage"] for sample in prometheus.query(asked)} == stages)


async def test_help_units_and_labels_and_no_series_for_a_request(
    prometheus: PrometheusProcess, tiny_pipeline: RunningPipeline
) -> None:
    urls = [f"http://127.0.0.1:{ports['metrics']}/metrics" for ports in tiny_pipeline.stages.values()]
    before = [await asyncio.to_thread(scrape, url) for url in urls]
    await asyncio.to_thread(send_requests, tiny_pipeline.endpoint)
    after = [await asyncio.to_thread(scrape, url) for url in urls]
    assert [problem for families in after for problem in find_bad_metrics(families)] == []
    assert [series_of(families) for families in before] == [series_of(families) for families in after]
