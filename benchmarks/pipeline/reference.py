"""transformers as a process: `python -m benchmarks.pipeline.reference CHECKPOINT`.

Answers each line, a JSON list of prompts, with the seconds after which each was done: one after another, as
transformers' Qwen2.5-Omni takes one request at a time when it speaks.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.pipeline.work import TALKER_TOKENS, THINKER_TOKENS

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # the reference that the tests compare our stages with


def main() -> None:
    from support.reference import ReferenceModel, ReferencePrompt, ReferenceSettings

    model = ReferenceModel(Path(sys.argv[1]))
    settings = ReferenceSettings(thinker_tokens=THINKER_TOKENS, talker_tokens=TALKER_TOKENS)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        done = []
        for prompt in json.loads(line):
            made = model.run(ReferencePrompt(prompt), settings)
            done.append([time.perf_counter() - start, len(made.thinker_token_ids), len(made.codec_token_ids)])
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
