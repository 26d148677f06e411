"""`omnipipe status --cost`: the figures of each stage from its pods' metrics."""

from __future__ import annotations

import socket

import pytest
from rich.console import Console
from typer.testing import CliRunner

from omni_cli.commands.status import compute_costs, draw
from omni_cli.commands.top import Pod, Sample
from omni_cli.main import app


def pod(stage: str, name: str, gpus: int = 1) -> Pod:
    return Pod(stage, name, gpus, lambda: socket.socket())


def sample(**values: float) -> Sample:
    return Sample(0.0, {name.replace("__", ":"): value for name, value in values.items()})


ENTRY = sample(
    omni_stage_pod_seconds_total=1000.0,
    omni_stage_engine_running_seconds_total=4000.0,
    omni_stage_engine_limit_requests=8.0,
    omni_pipeline_audio_seconds_total=3000.0,
)
BELOW = sample(
    omni_stage_pod_seconds_total=500.0,
    omni_stage_engine_running_seconds_total=500.0,
    omni_stage_engine_limit_requests=4.0,
)


def test_what_pods_cost_and_did_since_they_started() -> None:
    pods = [pod("thinker", "a", 2), pod("decoder", "b"), pod("decoder", "c"), pod("decoder", "d")]
    thinker, decoder = compute_costs(pods, {"a": ENTRY, "b": BELOW, "c": BELOW, "d": "connection refused"})
    assert (thinker.pod_seconds, thinker.gpu_seconds) == (1000.0, 2000.0)
    assert thinker.utilisation == pytest.approx(0.5)
    assert thinker.audio_per_gpu_second == pytest.approx(1.5), "3 s of audio a second, by two GPUs"
    assert (decoder.pods, decoder.unread, decoder.pod_seconds) == (3, 1, 1000.0)
    assert decoder.utilisation == pytest.approx(0.25)
    assert decoder.audio_per_gpu_second == pytest.approx(1.0)


def test_what_is_not_known_is_left_open() -> None:
    (one,) = compute_costs([pod("llm", "a", 0)], {"a": sample(omni_stage_ready=1.0)})
    assert (one.utilisation, one.audio_per_gpu_second, one.gpu_seconds) == (None, None, 0.0)
    console = Console(width=100, record=True)
    console.print(draw([one]))
    assert console.export_text().split() == [
        *("STAGE", "PODS", "POD-HOURS", "GPU-HOURS", "UTILISATION", "AUDIO", "S/GPU", "S"),
        *("llm", "1", "0.00", "-", "-", "-"),
    ]


def test_costs_are_not_watched() -> None:
    result = CliRunner().invoke(app, ["status", "a", "--cost", "--watch"])
    assert result.exit_code == 2
