"""Small parts of the process: logs, metrics, health checks, the rate limit, kopf's settings."""

from __future__ import annotations

import io
import itertools
import json
import logging
from collections.abc import Iterator

import pytest

from omni_kube.api.timing import RateLimiter
from omni_operator.process.kopf import EndlessBackoffs, build_kopf_settings, hide_reported
from omni_operator.process.liveness import check_alive, check_ready
from omni_operator.process.metrics import Metrics, Readings, condition_samples
from omni_operator.process.pipeline_log import configure_operator_logging, log_subject


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """Yields the root logger with Python's default record factory; restores its settings afterwards.

    Other tests import vLLM, which installs a factory that adds a field to every record.
    """
    root = logging.getLogger()
    handlers, level, factory = root.handlers[:], root.level, logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)
    yield root
    logging.setLogRecordFactory(factory)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_say_which_pipeline_they_are_about(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure_operator_logging("json", "info", stream)
    log = logging.getLogger("omni_operator.test")
    log.debug("not wanted")
    with log_subject("ns", "p"), log_subject("ns", "p", 7):
        log.info("applied %s", "x", extra={"count": 2, "settings": object()})
    log.warning("outside")
    inside, outside = map(json.loads, stream.getvalue().splitlines())
    assert inside | {"time": ""} == {
        "time": "",
        "level": "INFO",
        "logger": "omni_operator.test",
        "message": "applied x",
        "namespace": "ns",
        "name": "p",
        "generation": 7,
        "count": 2,
    }
    assert "namespace" not in outside


def test_text_lines_and_errors(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure_operator_logging("text", "warning", stream)
    try:
        raise ValueError("broken")
    except ValueError:
        with log_subject("ns", "p"):
            logging.getLogger("x").exception("failed")
    first = stream.getvalue().splitlines()[0]
    assert " ERROR x: failed namespace=ns name=p error=Traceback" in first
    assert "ValueError: broken" in stream.getvalue()


def test_libraries_are_quiet(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure_operator_logging("json", "info", stream)
    logging.getLogger("kopf.objects").info("handler succeeded")
    assert stream.getvalue() == ""


def test_metrics_are_named_as_documented() -> None:
    metrics = Metrics()
    metrics.count_call("patch", "200", 0.02)
    metrics.observe_reconcile("changed", 0.02)
    metrics.count_noop_apply()
    metrics.count_status_write()
    metrics.set_leader(True)
    conditions = [{"type": "Ready", "status": "False", "reason": "Starting"}]
    broken = condition_samples({"metadata": {"namespace": "n", "name": "p"}, "status": {"conditions": conditions}})
    new = condition_samples({"metadata": {"namespace": "n", "name": "q"}})
    metrics.add_readings(Readings(lambda: {"Pod/ns": 1.5}, lambda: [*broken, *new], lambda: 4, lambda: 2.5))
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    lines = body.decode().splitlines()
    for line in (
        'omni_operator_api_calls_total{code="200",verb="patch"} 1.0',
        'omni_operator_reconcile_total{result="changed"} 1.0',
        "omni_operator_reconcile_duration_seconds_count 1.0",
        'omni_operator_api_call_duration_seconds_sum{verb="patch"} 0.02',
        "omni_operator_noop_applies_total 1.0",
        "omni_operator_status_writes_total 1.0",
        "omni_operator_leader 1.0",
        'omni_operator_watch_age_seconds{watch="Pod/ns"} 1.5',
        'omni_operator_pipelines{ready="True"} 0.0',
        'omni_operator_pipelines{ready="False"} 1.0',
        'omni_operator_pipelines{ready="Unknown"} 1.0',
        'omni_operator_pipeline_condition{condition="Ready",pipeline="p",pipeline_namespace="n",reason="Starting"} 0.0',
        'omni_operator_pipeline_condition{condition="Ready",pipeline="q",pipeline_namespace="n",reason="Unknown"} 0.0',
        'omni_operator_reconcile_total{result="error"} 0.0',
        "omni_operator_queued_pipelines 4.0",
        "omni_operator_longest_due_seconds 2.5",
    ):
        assert line in lines
    assert not [line for line in lines if "_created" in line]


@pytest.mark.parametrize(
    ("ages", "busy_s", "problems"),
    [
        ({"Pod": 179.0}, 0.0, 0),
        ({"Pod": 181.0}, 0.0, 1),
        ({"Pod": 181.0, "Service/ns": 500.0}, 200.0, 3),
        ({}, 181.0, 1),
    ],
    ids=["well", "a silent watch", "two silent watches and a stuck queue", "a stuck queue"],
)
def test_what_makes_the_process_unwell(ages: dict[str, float], busy_s: float, problems: int) -> None:
    """Liveness fails if a watch is silent or the queue is stuck for more than 180 s."""
    found = check_alive(ages, busy_s)
    assert len(found) == problems
    assert all("limit 180 s" in problem for problem in found)


def test_what_makes_the_process_unready() -> None:
    assert check_ready([]) == []
    assert check_ready(["Pod", "ConfigMap"]) == ["not listed yet: ConfigMap, Pod"]


def test_calls_beyond_the_burst_wait() -> None:
    limiter = RateLimiter(rate=10.0, burst=3.0)
    assert [limiter.reserve(0.0) for _ in range(5)] == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2])
    assert limiter.reserve(0.3) == pytest.approx(0.0)
    assert [limiter.reserve(100.0) for _ in range(4)] == pytest.approx([0.0, 0.0, 0.0, 0.1]), (
        "unused calls do not accumulate beyond the burst"
    )


def test_a_burst_of_one_is_an_even_rate() -> None:
    limiter = RateLimiter(rate=2.0, burst=1.0)
    assert [limiter.reserve(50.0) for _ in range(3)] == pytest.approx([0.0, 0.5, 1.0])


def test_kopfs_retries_are_endless_and_can_be_iterated_again() -> None:
    """The pauses between kopf's retries are an endless sequence. Each iteration over it begins with the shortest."""
    backoffs = EndlessBackoffs()
    for _ in range(2):
        assert list(itertools.islice(backoffs, 6)) == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert not hasattr(backoffs, "__len__"), "kopf would take the sequence for finite"


def test_kopfs_lines_on_refused_calls_are_not_written(root_logger: logging.Logger) -> None:
    """kopf writes an ERROR for each attempt. The operator's own warning, one for each outage, names the remedy."""
    stream = io.StringIO()
    configure_operator_logging("text", "info", stream)
    hide_reported()
    kopf_logger = logging.getLogger("kopf._cogs.clients.watching")
    kopf_logger.error("Request attempt #3 failed; will retry: GET https://api/x -> APIForbiddenError('no', {})")
    kopf_logger.error("Request attempt #3 failed; will retry: GET https://api/x -> APIServerError('busy', {})")
    assert "APIForbiddenError" not in stream.getvalue()
    assert "APIServerError" in stream.getvalue()


def test_kopf_does_no_peering_scanning_or_posting() -> None:
    """kopf's own peering, scanning and Events are turned off."""
    settings = build_kopf_settings()
    assert settings.peering.standalone
    assert settings.scanning.disabled
    assert not settings.posting.enabled
    assert settings.queueing.worker_limit is None
    assert settings.watching.server_timeout == 60
