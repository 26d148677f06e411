"""`omnipipe top`: rates and gauges from the text that a stage's metrics port returns."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_cli.commands.top import Pod, Row, Sample, TopError, compute_row, local_pods
from omni_cli.main import app

POD = Pod("thinker", "p-thinker-0", 1, lambda: socket.socket())
TEXT = """
# TYPE omni_stage_ready gauge
omni_stage_ready 1
# TYPE omni_stage_inflight_limit_requests gauge
omni_stage_inflight_limit_requests 64
# TYPE omni_pipeline_audio_seconds counter
omni_pipeline_audio_seconds_total{voice="a"} %s
omni_pipeline_audio_seconds_total{voice="b"} 2
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running 3
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting 2
# TYPE omni_stage_waiting_requests gauge
omni_stage_waiting_requests 4
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc 0.25
"""


def test_rates_are_between_two_samples() -> None:
    row = compute_row(POD, Sample.of(TEXT % 10, 100.0), Sample.of(TEXT % 30, 104.0))
    assert row == Row("thinker", "p-thinker-0", True, 3.0, 6.0, 64.0, 0.25, tokens_per_s=None, audio_per_s=5.0, gpus=1)
    # A server that started again counts from zero.
    assert compute_row(POD, Sample.of(TEXT % 30, 100.0), Sample.of(TEXT % 1, 104.0)).audio_per_s is None
    assert compute_row(POD, None, Sample.of("", 104.0)) == Row("thinker", "p-thinker-0", gpus=1)


def test_a_local_run_that_ended_is_shown_as_such(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    file = tmp_path / "address.json"
    file.write_text(json.dumps({"endpoint": "x", "stages": {"llm": {"metrics": port}}}))
    result = CliRunner().invoke(app, ["top", "--address-file", str(file), "--interval", "0.1", "-o", "json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert row["stage"] == "llm"
    assert "refused" in row["problem"]
    file.write_text("[]")
    with pytest.raises(TopError, match="is not a file of omnipipe run"):
        local_pods(file)
    assert CliRunner().invoke(app, ["top"]).exit_code == 2
    assert CliRunner().invoke(app, ["top", "a", "--address-file", str(file)]).exit_code == 2
