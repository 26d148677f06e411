"""Prints transformers' answers to the prompts as a JSON list: `python -m benchmarks.peer.reference CHECKPOINT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.pipeline.work import PROMPTS, TALKER_TOKENS, THINKER_TOKENS

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # the reference that the tests compare our stages with


def main() -> None:
    from support.models.reference import ReferenceModel, ReferencePrompt, ReferenceSettings

    model = ReferenceModel(Path(sys.argv[1]))
    settings = ReferenceSettings(thinker_tokens=THINKER_TOKENS, talker_tokens=TALKER_TOKENS)
    made = [model.run(ReferencePrompt(prompt), settings) for prompt in PROMPTS]
    print(
        json.dumps(
            [
                {
                    "prompt": one.prompt_token_ids,
                    "text": one.thinker_token_ids,
                    "codes": one.codec_token_ids,
                    "samples": one.waveform.numel(),
                }
                for one in made
            ]
        )
    )


if __name__ == "__main__":
    main()
