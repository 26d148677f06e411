"""Compares the speed of our scheduler and worker with that of stock vLLM's, with the same tiny model and requests.

The three sides are engines in this process: stock vLLM, ours without rows, and ours with one row of hidden states per
position. There are many short rounds, and the order of the sides rotates, so that other load on the machine affects all
sides alike. Processor time is reported too, because other load disturbs it less.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.interleave import median_ratio, quantile, take_turns
from benchmarks.harness.report import Options, Report
from benchmarks.harness.verdict import Ratio

REQUESTS, PROMPT_TOKENS, NEW_TOKENS = 16, 48, 32
ROUNDS = 60
STOCK, IDLE, ROWS = "stock vLLM", "omni, nothing to enrich", "omni, hidden states out"
FLOORS = {IDLE: 0.97, ROWS: 0.85}
"""Lower bounds of tokens per second, relative to stock vLLM."""
TOLERANCE = 0.05
TABLE = "engine"


def measure(options: Options) -> Report:
    """Returns a row for each side: tokens per second, and the ratio to stock vLLM."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from omni_stage.vllm_adapter.process.env import apply_environment

    apply_environment()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        sides: dict[str, Callable[[], object]] = {
            STOCK: make_side(folder, omni=False, rows=False),
            IDLE: make_side(folder, omni=True, rows=False),
            ROWS: make_side(folder, omni=True, rows=True),
        }
        walls, processors = run_rounds(sides, options.rounds or ROUNDS)
    ratios = {name: median_ratio(walls[STOCK], taken) for name, taken in walls.items()}
    rows = [
        {
            "side": name,
            "tokens_per_s": round(REQUESTS * NEW_TOKENS / statistics.median(taken)),
            "ratio_to_stock": round(ratios[name], 3),
            "ratios_10_to_90_percent": [
                round(quantile([stock / own for stock, own in zip(walls[STOCK], taken, strict=True)], share), 3)
                for share in (0.1, 0.9)
            ],
            "ratio_by_processor_time": round(median_ratio(processors[STOCK], processors[name]), 3),
        }
        for name, taken in walls.items()
    ]
    judged = [
        Ratio(name, round(ratios[name], 3), at_least=least, tolerance=TOLERANCE) for name, least in FLOORS.items()
    ]
    notes = [
        f"{REQUESTS} concurrent requests, {PROMPT_TOKENS} tokens in, {NEW_TOKENS} out. A seeded 4-layer Qwen2 of width "
        "256 in float32: a step takes milliseconds, and on a real model the same overhead is a smaller share.",
        "ratio_to_stock is the median of the rounds' ratios.",
    ]
    return Report({TABLE: rows}, judged, notes)


def run_rounds(
    sides: dict[str, Callable[[], object]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Returns the wall-clock and the processor seconds, by side and round. Two warm-up rounds are not counted."""
    names = list(sides)
    walls: dict[str, list[float]] = {name: [] for name in names}
    processors: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-2, rounds):
        for name in take_turns(names, number):
            wall, processor = time.perf_counter(), time.process_time()
            sides[name]()
            if number >= 0:
                walls[name].append(time.perf_counter() - wall)
                processors[name].append(time.process_time() - processor)
    return walls, processors


def write_model(folder: Path) -> None:
    """Write a seeded Qwen2 with four layers."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).float().save_pretrained(folder)


def make_side(model: str, *, omni: bool, rows: bool) -> Callable[[], object]:
    """Start an engine. Returns a function that runs all requests through it."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    from omni_stage.payloads.additional_information import OMNI_ROWS_KEY
    from omni_stage.vllm_adapter.core.output_processor import OmniOutputProcessor
    from omni_stage.vllm_adapter.wiring.names import scheduler_cls, worker_cls

    extra: dict[str, Any] = {}
    if omni:
        extra = {
            "worker_cls": worker_cls("autoregressive", "cpu"),
            "scheduler_cls": scheduler_cls("autoregressive", False),
            "additional_config": {"omni": {"capture_rows": True}},
        }
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=256,
            max_num_seqs=REQUESTS,
            enforce_eager=True,
            enable_prefix_caching=False,
            async_scheduling=False,
            kv_cache_memory_bytes=64 << 20,
            disable_log_stats=True,
            **extra,
        )
    )
    # Our output processor separates hidden states from tokens. Otherwise it is the stock one.
    engine.output_processor = OmniOutputProcessor(engine.output_processor.tokenizer, log_stats=False)
    params = SamplingParams(
        max_tokens=NEW_TOKENS,
        temperature=0,
        ignore_eos=True,
        detokenize=False,
        extra_args={OMNI_ROWS_KEY: True} if rows else None,
    )

    def run() -> None:
        for number in range(REQUESTS):
            prompt = [(number * 37 + position * 11) % 500 + 3 for position in range(PROMPT_TOKENS)]
            engine.add_request(str(number), {"prompt_token_ids": prompt}, params.clone())
        while engine.has_unfinished_requests():
            engine.step()

    return run
