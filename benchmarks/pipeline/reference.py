"""transformers as a process: `python -m benchmarks.pipeline.reference CHECKPOINT`.

Answers each line, {"prompts": [...], "talker_tokens": n}, with the seconds after which each was
done: one after another, as transformers' Qwen2.5-Omni takes one request at a time when it speaks.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.pipeline.work import THINKER_TOKENS

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # the reference that the tests compare our stages with


def main() -> None:
    from support.reference import ReferenceModel, ReferencePrompt, ReferenceSettings

    model = ReferenceModel(Path(sys.argv[1]))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        asked = json.loads(line)
        settings = ReferenceSettings(thinker_tokens=THINKER_TOKENS, talker_tokens=asked["talker_tokens"])
        done = []
        for prompt in asked["prompts"]:
            made = model.run(ReferencePrompt(prompt), settings)
            done.append([time.perf_counter() - start, len(made.thinker_token_ids), len(made.codec_token_ids)])
        print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
