"""The gateway with clients that disconnect, have no key, send too much, or send garbage."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import pytest

from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.guard.keys import hash_key
from omni_gateway.settings import GatewaySettings
from support.machine.sockets import list_listeners
from support.peers.gateways import serve_gateway
from support.processes.pipelines import RunningPipeline
from support.processes.polling import PATIENCE_S, wait_until

pytestmark = pytest.mark.pipeline

MODEL = "tiny-omni"
INFLIGHT = re.compile(r"omni_stage_inflight_requests[ {]")
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
LONG: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_completion_tokens": 1500, "ignore_eos": True}
SPEECH: dict[str, Any] = {"modalities": ["text", "audio"], "audio": {"voice": "Ethan", "format": "pcm16"}}


def requests_in(pipeline: RunningPipeline) -> float:
    """Returns how many requests all stages hold together."""
    total = 0.0
    for ports in pipeline.stages.values():
        with urllib.request.urlopen(f"http://127.0.0.1:{ports['metrics']}/metrics", timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
        total += sum(float(line.split()[-1]) for line in lines if INFLIGHT.match(line))
    return total


def wait_for_requests(pipeline: RunningPipeline, *, any_left: bool) -> None:
    wait_until(lambda: (requests_in(pipeline) > 0) is any_left, why=lambda: requests_in(pipeline))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_every_stage(
    tiny_gateway: str, tiny_pipeline: RunningPipeline, stream: bool
) -> None:
    wait_for_requests(tiny_pipeline, any_left=False)
    host, port = tiny_gateway.removeprefix("http://").split(":")
    body = json.dumps({**LONG, **SPEECH, "stream": stream}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}"
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        wait_for_requests(tiny_pipeline, any_left=True)
    wait_for_requests(tiny_pipeline, any_left=False)


def test_a_body_that_says_it_is_too_large_is_not_waited_for(tiny_gateway: str) -> None:
    host, port = tiny_gateway.removeprefix("http://").split(":")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10000000000\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
        client.sendall(head)
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"request_too_large" in answer


def test_bodies_are_bounded_in_size_and_in_time(tiny_pipeline: RunningPipeline) -> None:
    pipeline = ServedPipeline(MODEL, f"grpc://{tiny_pipeline.endpoint}")
    with serve_gateway(pipeline, settings=GatewaySettings(max_body_bytes=2048)) as url:
        # A chunked body without Content-Length.
        answer = httpx.post(f"{url}/v1/chat/completions", content=iter([b"x" * 1000] * 5), timeout=PATIENCE_S)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    with serve_gateway(pipeline, settings=GatewaySettings(body_seconds=0.5)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            assert b"body_timeout" in client.recv(65536)


def test_keys_let_in_and_limits_hold(
    tiny_pipeline: RunningPipeline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.yaml"
    limits = "limits: {requestsPerMinute: 2}"
    file.write_text(f"keys:\n- {{name: alice, sha256: {hash_key('the-right-key')}, {limits}}}\n")
    pipeline = ServedPipeline(MODEL, f"grpc://{tiny_pipeline.endpoint}")
    with (
        caplog.at_level(logging.DEBUG),
        serve_gateway(pipeline, settings=GatewaySettings(keys_file=file)) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_S) as client,
    ):
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").json()["error"]["code"] == "missing_api_key"
        for wrong in ("wrong-key", "the-right-ke", "the-right-key2"):
            refused = client.get("/v1/models", headers={"authorization": f"Bearer {wrong}"})
            assert refused.status_code == 401
        right = {"authorization": "Bearer the-right-key"}
        answers = [client.get("/v1/models", headers=right) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[0].headers["x-ratelimit-limit-requests"] == "2"
        assert answers[1].headers["x-ratelimit-remaining-requests"] == "0"
        assert 1 <= int(answers[2].headers["retry-after"]) <= 60
        assert answers[2].json()["error"]["type"] == "rate_limit_error"
    assert "alice" in caplog.text or any(getattr(record, "key", "") == "alice" for record in caplog.records)
    for record in caplog.records:
        assert not any(secret in str(vars(record)) for secret in ("the-right-key", "wrong-key"))


def test_a_drain_ends_what_was_begun(tiny_pipeline: RunningPipeline, tmp_path: Path) -> None:
    config, address = tmp_path / "gateway.yaml", tmp_path / "address.json"
    # Long enough for the question below, even if this process has to wait for a core.
    config.write_text("drainNoticeSeconds: 10\n")
    command = [sys.executable, "-m", "omni_gateway", "--host", "127.0.0.1", "--port", "0", "--config", str(config)]
    command += ["--endpoint", f"{MODEL}=grpc://{tiny_pipeline.endpoint}", "--address-file", str(address)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=dict(os.environ)) as process:
        try:
            wait_until(lambda: address.exists() or process.poll() is not None)
            url = json.loads(address.read_text())["http"]
            assert [str(one.port) for one in list_listeners({process.pid})] == [url.rpartition(":")[2]]
            asked = {**LONG, "max_completion_tokens": 300, "stream": True}
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=asked, timeout=PATIENCE_S) as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith("data: ")
                process.send_signal(signal.SIGTERM)
                while (ready := httpx.get(f"{url}/ready", timeout=PATIENCE_S)).status_code == 200:
                    time.sleep(0.05)
                assert (ready.status_code, ready.headers["connection"]) == (503, "close")
                assert [line for line in lines if line][-1] == "data: [DONE]"
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
