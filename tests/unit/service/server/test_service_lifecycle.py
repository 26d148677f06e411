"""What ends calls and servers: deadlines, cancellation, admission, engine death, watchdog. Also health."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from omni_proto.pod_contract import ExitCode
from omni_stage.service.edges.channels import MIN_HOP_MARGIN_S, Deadline
from support.processes.polling import PATIENCE_S
from support.stages import scripted_stages as lab

SERVICE = "omni_proto.stage.v1.StageService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


# Deadlines and cancellation ------------------------------------


async def test_default_deadline_is_timeouts_request(kit: Any) -> None:
    stage = await kit.serve(lab.wait_forever, timeouts={"request": 3.0})
    answer = await lab.ask(stage, timeout_s=None)
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert answer.text == "so far"
    assert len(stage.engine.aborted) == 1


async def test_deadline_shrinks_on_every_hop_and_the_last_stage_speaks(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage gives the next one a shorter deadline. The stage whose time is over is named in the error."""
    given: list[float | None] = []
    of_call = Deadline.of_call

    def note(remaining_s: float | None, longest_s: float, now: float) -> Deadline:
        given.append(remaining_s)
        return of_call(remaining_s, longest_s, now)

    monkeypatch.setattr(Deadline, "of_call", note)
    chain = await kit.chain(
        token2wav=lab.wait_forever, timeouts={"request": 2 * PATIENCE_S}, last_timeouts={"request": 3.0}
    )
    answer = await lab.ask(chain[0], timeout_s=None)
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert answer.info.metadata["stage"] == "token2wav"
    assert given[0] is None
    middle, last = (remaining for remaining in given[1:] if remaining is not None)
    assert last + MIN_HOP_MARGIN_S <= middle <= 2 * PATIENCE_S - MIN_HOP_MARGIN_S
    for stage in chain:
        assert len(stage.server.in_flight) == 0 or await stage.server.in_flight.wait_idle(PATIENCE_S)
    assert len(chain[2].engine.aborted) == 1


async def test_cancelling_reaches_every_stage(kit: Any) -> None:
    stages = await kit.chain(token2wav=lab.wait_forever)
    call, task = await lab.begin(stages[0])
    await asyncio.wait_for(stages[2].engine.started.wait(), PATIENCE_S)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for stage in stages:
        assert await stage.server.in_flight.wait_idle(PATIENCE_S)
        assert stage.server.admission.requests == 0
        assert stage.server.admission.bytes == 0
    assert len(stages[2].engine.aborted) == 1


# Admission ------------------------------------


async def test_too_many_requests_carries_retry_info(kit: Any) -> None:
    stage = await kit.serve(lab.wait_forever, limits={"maxConcurrentRequests": 1})
    call, task = await lab.begin(stage)
    answer = await lab.ask(stage)
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_REQUESTS")
    assert answer.detail(error_details_pb2.RetryInfo).retry_delay.seconds == 1
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_byte_budget(kit: Any) -> None:
    stages = await kit.chain(thinker=lab.wait_forever, limits={"maxInflightBytes": 1 << 20}, max_model_len=40_000)
    stage = stages[0]
    stage.server.admission.max_bytes = 2000
    call, task = await lab.begin(stage)
    reserved = stage.server.admission.bytes
    # Rows for the next stage, then the text and its token ids.
    assert reserved == (len("hello") + 8 + 16) * (16 + 8) + 4 * len("hello") + 64 * (len("hello") + 8)
    answer = await lab.ask(stage)
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "BYTE_BUDGET_EXCEEDED")
    answer = await lab.ask(stage, [lab.start("x" * 100), lab.END])
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE")
    with pytest.raises(AssertionError):
        answer.detail(error_details_pb2.RetryInfo)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Health, reflection, metrics ------------------------------------


async def test_health_on_both_ports(kit: Any) -> None:
    stage = await kit.serve()
    ports = stage.server.ports
    assert [await lab.check_health(ports.grpc, name) for name in ("", SERVICE)] == [SERVING, SERVING]
    assert [await lab.check_health(ports.health, name) for name in ("", "readiness", "liveness")] == [SERVING] * 3
    stage.server.health.set_ready(False)
    assert await lab.check_health(ports.grpc, "") == NOT_SERVING
    assert await lab.check_health(ports.health, "readiness") == NOT_SERVING
    assert await lab.check_health(ports.health, "liveness") == SERVING


async def test_reflection_lists_the_service(kit: Any) -> None:
    stage = await kit.serve()
    async with grpc.aio.insecure_channel(stage.target) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        answers = [answer async for answer in stub.ServerReflectionInfo(iter(requests), timeout=PATIENCE_S)]
    names = {service.name for service in answers[0].list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    assert answers[1].file_descriptor_response.file_descriptor_proto


async def test_metrics_over_http(kit: Any) -> None:
    stage = await kit.serve()
    await lab.ask(stage)
    await stage.wait_for_metric("omni_stage_requests_total", 1, code="OK", reason="")
    stage.engine.waiting_requests = 3
    url = f"http://127.0.0.1:{stage.server.ports.metrics}/metrics"
    text = (await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=PATIENCE_S).read())).decode()
    assert 'omni_stage_requests_total{code="OK",reason=""} 1.0' in text
    assert "# HELP omni_stage_queue_seconds Time from" in text
    assert "omni_stage_waiting_requests 3.0" in text


@pytest.mark.parametrize(("flags", "is_sampled"), [("01", True), ("00", False)])
async def test_histograms_of_requests_name_a_trace_in_openmetrics(kit: Any, flags: str, is_sampled: bool) -> None:
    """Buckets have the trace as an exemplar, as in the gateway. The names of vLLM's metrics keep their colons."""
    stage = await kit.serve()
    Gauge("vllm:num_requests_waiting", "As in vLLM.", registry=stage.registry)
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    await lab.ask(stage, metadata=(("traceparent", f"00-{trace}-{span}-{flags}"),))
    await stage.wait_for_metric("omni_pipeline_requests_total", 1, code="OK", reason="")
    accept = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5"}
    asked = urllib.request.Request(f"http://127.0.0.1:{stage.server.ports.metrics}/metrics", headers=accept)
    answer = await asyncio.to_thread(lambda: urllib.request.urlopen(asked, timeout=PATIENCE_S))  # noqa: S310 - http
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    samples = [one for family in text_string_to_metric_families(answer.read().decode()) for one in family.samples]
    assert "vllm:num_requests_waiting" in [one.name for one in samples]
    named = {one.name.removesuffix("_bucket"): one.exemplar.labels for one in samples if one.exemplar is not None}
    assert set(named) == (
        {
            "omni_stage_request_seconds",
            "omni_stage_queue_seconds",
            "omni_stage_first_output_seconds",
            "omni_pipeline_request_seconds",
            "omni_pipeline_first_text_seconds",
        }
        if is_sampled
        else set()
    )
    assert all(labels == {"trace_id": trace, "span_id": span} for labels in named.values())


# The engine ------------------------------------


async def test_engine_death_ends_calls_and_the_server(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_TERMINATION_LOG", str(tmp_path / "termination"))
    stage = await kit.serve(lab.wait_forever)
    _, task = await lab.begin(stage)
    await asyncio.wait_for(stage.engine.read.wait(), PATIENCE_S)
    serving = asyncio.create_task(stage.server.serve(asyncio.Event(), asyncio.Event()))
    stage.engine.is_dead = True
    answer = await asyncio.wait_for(task, PATIENCE_S)
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_DEAD")
    assert answer.text == "so far"
    assert await asyncio.wait_for(serving, PATIENCE_S) is ExitCode.ENGINE_DEAD
    assert await lab.check_health(stage.server.ports.health, "liveness") == NOT_SERVING
    assert json.loads((tmp_path / "termination").read_text())["reason"] == "EngineDead"
    assert (await lab.ask(stage)).info.reason == "ENGINE_DEAD"


async def test_watchdog_ends_calls_of_a_stuck_engine(kit: Any) -> None:
    stage = await kit.serve(lab.wait_forever, timeouts={"step": 0.3})
    stop = asyncio.Event()
    serving = asyncio.create_task(stage.server.serve(stop, asyncio.Event()))
    answer = await lab.ask(stage)
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "STEP_TIMEOUT")
    assert await lab.check_health(stage.server.ports.health, "liveness") == NOT_SERVING
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


@pytest.mark.parametrize(("dies", "reason"), [(True, "EngineDead"), (False, "StepTimeout")])
async def test_what_is_left_for_kubelet_holds_nothing_of_requests(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool, reason: str
) -> None:
    """The termination message holds no content of requests, because the operator copies it to Events and the status."""
    note, canary = tmp_path / "termination", "canarino7f3a"
    monkeypatch.setenv("OMNI_TERMINATION_LOG", str(note))
    stage = await kit.serve(lab.wait_forever, timeouts={"step": 30 if dies else 0.3})
    serving = asyncio.create_task(stage.server.serve(asyncio.Event(), asyncio.Event()))
    call = stage.stub.Generate(
        iter([lab.start(canary, cache_salt=canary), lab.END]), timeout=PATIENCE_S, metadata=(("x-request-id", canary),)
    )
    task = asyncio.create_task(lab.collect(call))
    await asyncio.wait_for(stage.engine.started.wait(), PATIENCE_S)
    stage.engine.is_dead = dies
    assert (await task).code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    if dies:
        assert await asyncio.wait_for(serving, PATIENCE_S) is ExitCode.ENGINE_DEAD
    serving.cancel()
    said = note.read_text()
    assert json.loads(said)["reason"] == reason
    assert canary not in said


async def test_engine_that_is_loading(kit: Any) -> None:
    stage = await kit.serve()
    stage.server.runtime.engine_ready = False
    answer = await lab.ask(stage)
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY")


# The process ------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param("stage: [", "not YAML", id="not YAML"),
        pytest.param("schemaVersion: 1\npipeline: p\nstage: a\ncomponent: x/y\n", "model", id="field missing"),
        pytest.param(None, "cannot read", id="no file"),
    ],
)
def test_bad_configuration_ends_with_78(tmp_path: Path, content: str | None, says: str) -> None:
    file, note = tmp_path / "stage.yaml", tmp_path / "termination"
    if content is not None:
        file.write_text(content)
    result = subprocess.run(
        [sys.executable, "-m", "omni_stage", "serve", "--config", str(file), "--log-format", "json"],
        env={**os.environ, "OMNI_TERMINATION_LOG": str(note)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 78
    said = json.loads(note.read_text())
    assert said["reason"] == "InvalidConfiguration"
    assert says in said["message"]
    assert json.loads(result.stderr.splitlines()[-1])["level"] == "CRITICAL"
