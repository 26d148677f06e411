"""vllm-omni as a side, in its own virtual environment: `python engine.py CHECKPOINT DEPLOYMENT CODES_FILE`.

It speaks JSON lines. Its first line is {"ready_s": seconds since this process began}. Then it answers each line

    {"prompts": [[token id]], "text_tokens", "codes", "codec_end"}

with a line

    {"answers": [{"done", "first_audio", "samples", "text"}], "codes": [[codec token]]}

Times are in seconds since all prompts were sent. The answer's `codes` are the codec tokens of each call of code2wav.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

BEGAN = time.perf_counter()
START_LIMIT_S = 900


async def serve(checkpoint: str, deployment: str, codes: Path, out: TextIO) -> None:
    """Answer lines until stdin ends."""
    from vllm_omni import AsyncOmni

    engine = AsyncOmni(
        model=checkpoint, deploy_config=deployment, stage_init_timeout=START_LIMIT_S, init_timeout=START_LIMIT_S
    )
    print(json.dumps({"ready_s": time.perf_counter() - BEGAN}), file=out, flush=True)
    loop = asyncio.get_running_loop()
    number = read = 0
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        began = time.perf_counter()
        answers = await asyncio.gather(
            *(_ask(engine, f"{number}-{index}", prompt, asked, began) for index, prompt in enumerate(asked["prompts"]))
        )
        number += 1
        calls = _read_calls(codes)
        print(json.dumps({"answers": answers, "codes": calls[read:]}), file=out, flush=True)
        read = len(calls)
    engine.shutdown()


def _read_calls(file: Path) -> list[list[int]]:
    """Returns the codec tokens of each call of code2wav so far."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


async def _ask(engine: Any, name: str, prompt: list[int], asked: dict[str, Any], began: float) -> dict[str, Any]:
    answer: dict[str, Any] = {"first_audio": None, "samples": 0, "text": []}
    sampling = _sampling(asked["text_tokens"], asked["codes"], asked["codec_end"])
    async for output in engine.generate({"prompt_token_ids": prompt}, request_id=name, sampling_params_list=sampling):
        now = time.perf_counter() - began
        made = output.outputs[0] if output.outputs else None
        if output.final_output_type == "text" and made is not None:
            answer["text"] = list(made.token_ids)
        audio = getattr(made, "multimodal_output", None) or getattr(output, "multimodal_output", None)
        if output.final_output_type == "audio" and audio:
            answer["first_audio"] = answer["first_audio"] or now
            answer["samples"] = _count(audio.get("audio", audio.get("model_outputs")))
    answer["done"] = time.perf_counter() - began
    return answer


def _sampling(text_tokens: int, codes: int, codec_end: int) -> list[Any]:
    """Returns greedy sampling for the three stages, with at most `text_tokens` tokens and exactly `codes` codes."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    final = RequestOutputKind.FINAL_ONLY
    return [
        SamplingParams(temperature=0.0, max_tokens=text_tokens, output_kind=final),
        SamplingParams(
            temperature=0.0,
            max_tokens=codes,
            min_tokens=codes,
            ignore_eos=True,
            stop_token_ids=[codec_end],
            detokenize=False,
            output_kind=final,
        ),
        SamplingParams(temperature=0.0, max_tokens=2048, output_kind=final),
    ]


def _count(audio: Any) -> int:
    parts = audio if isinstance(audio, list) else [audio]
    return sum(int(part.numel()) for part in parts)


if __name__ == "__main__":
    # Output of the engine's libraries goes to stderr, so that stdout has only the answers.
    answers_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]), answers_to))
