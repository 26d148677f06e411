"""Runs transformers as a process: `python -m benchmarks.pipeline.reference CHECKPOINT FAMILY`.

It prints "ready", and then reads lines {"prompts": [...], "talker_tokens": n}. It runs the prompts one after another,
because transformers' omni models speak for one request at a time. Its answer is a list with three numbers for each
prompt: the seconds until the prompt was done, its text tokens, and its codes or frames.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.pipeline.work import THINKER_TOKENS

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # the references that the tests compare our stages with

Run = Callable[[str, int], tuple[int, int]]
"""(prompt, most codes) -> the numbers of text tokens, and of codes or frames, that were made."""


def main() -> None:
    """Answer lines until stdin ends."""
    run = LOADERS[sys.argv[2]](Path(sys.argv[1]))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        asked = json.loads(line)
        done = []
        for prompt in asked["prompts"]:
            made = run(prompt, asked["talker_tokens"])
            done.append([time.perf_counter() - start, *made])
        print(json.dumps(done), flush=True)


def load_qwen25(checkpoint: Path) -> Run:
    """Returns a function that runs Qwen2.5-Omni's generate()."""
    from support.models.reference import ReferenceModel, ReferencePrompt, ReferenceSettings

    model = ReferenceModel(checkpoint)

    def run(prompt: str, codes: int) -> tuple[int, int]:
        made = model.run(ReferencePrompt(prompt), ReferenceSettings(thinker_tokens=THINKER_TOKENS, talker_tokens=codes))
        return len(made.thinker_token_ids), len(made.codec_token_ids)

    return run


def load_qwen3(checkpoint: Path) -> Run:
    """Returns a function that runs Qwen3-Omni's generate() and decodes its codes in one forward."""
    from support.models.reference import ReferencePrompt
    from support.models.reference_qwen3 import Qwen3ReferenceModel, Qwen3Settings

    model = Qwen3ReferenceModel(checkpoint)

    def run(prompt: str, frames: int) -> tuple[int, int]:
        made = model.run(ReferencePrompt(prompt), Qwen3Settings(thinker_tokens=THINKER_TOKENS, frames=frames))
        return len(made.thinker_token_ids), len(made.codes)

    return run


LOADERS = {"qwen2_5_omni": load_qwen25, "qwen3_omni": load_qwen3}


if __name__ == "__main__":
    main()
