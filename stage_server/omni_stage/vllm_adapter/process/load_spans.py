"""Keeps vLLM from tracing how an engine loads.

vLLM 0.32 sends spans of every process of an engine (`EngineCoreProc init`, `Load model`, ...) wherever
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set: `v1/engine/core.py` and `v1/executor/multiproc_executor.py` call
`vllm.tracing.maybe_init_worker_tracer` unconditionally. Its gRPC exporter supports no TLS and sets no service name, and
the spans belong to no request. The stage sends its own spans to the endpoint in the same variable
(omni_proto.runtime.otlp).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from omni_proto.runtime.otlp import ENDPOINTS

_READ_BY_VLLM = ENDPOINTS[0]


@contextmanager
def without_load_spans() -> Iterator[None]:
    """Processes started within this context do not see the OTLP endpoint, so vLLM exports no spans from them."""
    endpoint = os.environ.pop(_READ_BY_VLLM, None)
    try:
        yield
    finally:
        if endpoint is not None:
            os.environ[_READ_BY_VLLM] = endpoint
