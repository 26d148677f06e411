"""The floor of a turn: vLLM's own engine with the thinker alone, without our scheduler, runner, server and talker.

Run in a process of its own, because vLLM starts its engine there. Only packages of others run in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.report import Row

__all__ = ["STOCK", "measure_stock"]

STOCK = "vLLM alone"
"""Name of the side."""


async def measure_stock(
    checkpoint: Path,
    arguments: Mapping[str, Any],
    clips: Sequence[np.ndarray],
    replies: Sequence[str],
    shown: Sequence[int],
    max_tokens: int,
) -> list[Row]:
    """Returns a row for each turn of `shown`. Every turn is asked, so that each finds the earlier ones cached.

    `arguments`: vLLM's; `clips`: float32 at 16 kHz, one for each turn and then those that warm up.
    """
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_NO_USAGE_STATS": "1"}
    from vllm import RequestOutput, SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    limits: dict[str, Any] = {"audio": len(replies), "image": 0, "video": 0}
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(checkpoint), limit_mm_per_prompt=limits, **arguments))
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)

    async def ask(name: str, heard: Sequence[np.ndarray], said: Sequence[str]) -> Row:
        prompt: Any = {"prompt": _write(said), "multi_modal_data": {"audio": [(clip, 16_000) for clip in heard]}}
        began, first_s = time.perf_counter(), 0.0
        last: RequestOutput | None = None
        async for output in llm.generate(prompt, params, name):
            first_s, last = first_s or time.perf_counter() - began, output
        if last is None or last.metrics is None:
            raise RuntimeError("vLLM gave no output")
        thinker_s = last.metrics.first_token_ts - last.metrics.queued_ts
        tokens = len(last.prompt_token_ids or ())
        return {
            "prompt_tokens": tokens,
            "computed_tokens": tokens - (last.num_cached_tokens or 0),
            "prepared_s": round(first_s - thinker_s, 3),
            "thinker_s": round(thinker_s, 3),
        }

    try:
        for number, clip in enumerate(clips[len(replies) :]):
            await ask(f"warm{number}", [clip], [])
        rows = [
            {"side": STOCK, "turn": turn, **await ask(f"turn{turn}", clips[:turn], replies[: turn - 1])}
            for turn in range(1, len(replies) + 1)
        ]
    finally:
        llm.shutdown()
    return [row for row in rows if row["turn"] in shown]


def _write(said: Sequence[str]) -> str:
    """Returns the prompt as the checkpoint's chat template writes it."""
    user = "<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|><|im_end|>\n<|im_start|>assistant\n"
    return user + "".join(f"{reply}<|im_end|>\n{user}" for reply in said)
