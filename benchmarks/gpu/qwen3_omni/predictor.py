"""Measures what the code predictor adds to a step of the talker, in bfloat16, without and with a CUDA graph."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu.checks import Context, Finding, at_most
from benchmarks.gpu.qwen3_omni.audio import PUBLISHED

AT_ONCE = (1, 8, 32, 64)
FRAME_MS = 80.0
"""Milliseconds of audio in a frame of codes."""


def load(device: str) -> Any:
    """Returns transformers' code predictor with the release's shapes and random weights, in bfloat16."""
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerConfig
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
        Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration as Predictor,
    )

    talker = Qwen3OmniMoeTalkerConfig.from_dict(json.loads(PUBLISHED.read_text(encoding="utf-8"))["talker_config"])
    with torch.device(device):
        return Predictor._from_config(talker.code_predictor_config, dtype=torch.bfloat16).eval().requires_grad_(False)


def cost(context: Context) -> Iterator[Finding]:
    """Measures milliseconds per step by batch size, without and with a CUDA graph, and compares the codes of both."""
    from omni_stage.models.qwen3_omni.talker.predictor import CodePredictor

    model = load("cuda")
    predictor = CodePredictor(model)
    hidden_size = model.config.hidden_size
    for count in AT_ONCE:
        hidden, first = torch.randn(2, count, hidden_size, device="cuda", dtype=torch.bfloat16)
        greedy = torch.zeros(count, dtype=torch.bool, device="cuda")
        numbers = torch.arange(count, device="cuda")

        def run(
            hidden: torch.Tensor = hidden,
            first: torch.Tensor = first,
            greedy: torch.Tensor = greedy,
            numbers: torch.Tensor = numbers,
        ) -> torch.Tensor:
            return predictor.predict(hidden, first, greedy, numbers, numbers)

        with torch.inference_mode():
            eager = milliseconds(run)
            graph, output = torch.cuda.CUDAGraph(), None
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                run()
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph):
                output = run()
            graph.replay()
            same = bool(torch.equal(output, run()))
            graphed = milliseconds(graph.replay)
        data = {"eager_ms": eager, "graph_ms": graphed, "graph_equal": same}
        context.say(f"{count} frames: {data}")
        yield at_most(eager, FRAME_MS, name=f"{count}_frames", unit="ms", data=data)


def milliseconds(run: Callable[[], Any], rounds: int = 10) -> float:
    """Returns the mean milliseconds of a call, after three warm-up calls."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(rounds):
        run()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began) / rounds
