"""Tokens a second of our scheduler and worker against stock vLLM: same engine, same tiny model, same requests.

Sides: stock; omni with nothing to enrich; omni with one row of hidden states out for each position.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.interleave import time_interleaved

REQUESTS, PROMPT_TOKENS, NEW_TOKENS = 16, 48, 64


def measure(rounds: int) -> list[dict[str, object]]:
    """One row a side: tokens a second and the ratio to stock."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from omni_stage.vllm_adapter.env import apply_environment

    apply_environment()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        sides: dict[str, Callable[[], object]] = {
            "stock vLLM": make_side(folder, omni=False, rows=False),
            "omni, nothing to enrich": make_side(folder, omni=True, rows=False),
            "omni, hidden states out": make_side(folder, omni=True, rows=True),
        }
        seconds = time_interleaved(sides, rounds)
    stock = seconds["stock vLLM"]
    return [
        {"side": name, "tokens_per_s": round(REQUESTS * NEW_TOKENS / taken), "ratio_to_stock": round(stock / taken, 3)}
        for name, taken in seconds.items()
    ]


def write_model(folder: Path) -> None:
    """A seeded two-layer Qwen2."""
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
    """An engine of its own, and a function that runs all requests through it."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    from omni_stage.payloads.keys import OMNI_ROWS_KEY
    from omni_stage.vllm_adapter.output_processor import OmniOutputProcessor
    from omni_stage.vllm_adapter.select import scheduler_cls, worker_cls

    extra: dict[str, Any] = {}
    if omni:
        extra = {
            "worker_cls": worker_cls("autoregressive", "cpu"),
            "scheduler_cls": scheduler_cls("autoregressive", False),
            "additional_config": {"omni": {"capture_rows": "hidden"}},
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
    # Hidden states must be peeled off beside tokens; everything else is the stock processor's.
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
