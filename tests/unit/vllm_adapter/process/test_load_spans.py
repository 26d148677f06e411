"""vLLM's engine processes export spans if an OTLP endpoint is set; `without_load_spans` prevents this."""

from __future__ import annotations

import os

import pytest
from vllm.tracing import otel

from omni_proto.runtime.otlp import ENDPOINTS
from omni_stage.vllm_adapter.process.env import without_load_spans

pytest.importorskip("opentelemetry.sdk")


def test_an_engines_process_opens_no_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setenv(ENDPOINTS[0], "http://127.0.0.1:1")
    monkeypatch.setattr(otel, "init_otel_tracer", lambda name, endpoint, *_: opened.append(endpoint))
    with without_load_spans():
        otel.init_otel_worker_tracer("vllm.engine_core", "engine_core", "EngineCore")
    assert opened == []
    assert os.environ[ENDPOINTS[0]] == "http://127.0.0.1:1", (
        "the variable stays set, because the stage's own exporter reads it"
    )
    otel.init_otel_worker_tracer("vllm.engine_core", "engine_core", "EngineCore")
    assert opened == ["http://127.0.0.1:1"], "vLLM has changed: without_load_spans is not needed any more"
