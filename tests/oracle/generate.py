"""Answers prompts with transformers' own generate() and writes what it made of them. Runs under any transformers.

    python generate.py --checkpoint DIR --questions questions.json --out DIR [--left-pad]

Imports nothing of this repository: it runs in virtual environments that do not have it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor


class Recorder:
    """Keeps what passes between the parts of the model, which generate() does not return."""

    def __init__(self, model: Any, seed: int) -> None:
        self.codec_tokens: list[int] = []
        self.sounded: list[int] = []
        talk, sound = model.talker.generate, model.token2wav.forward

        def talk_and_keep(*args: Any, **kwargs: Any) -> Any:
            result = talk(*args, **kwargs)
            self.codec_tokens = result[0, kwargs["input_ids"].shape[1] :].tolist()
            return result

        def sound_and_keep(code: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.sounded = code[0].tolist()
            # The noise is drawn inside, behind whatever the talker may have drawn.
            torch.manual_seed(seed)
            return sound(code, *args, **kwargs)

        model.talker.generate = talk_and_keep
        model.token2wav.forward = sound_and_keep


def encode(processor: Any, question: dict[str, Any], *, left_pad: bool) -> dict[str, Any]:
    """Returns the processor's tensors of a question; with one padding token on the left if `left_pad`."""
    content: list[dict[str, str]] = [{"type": "image"} for _ in question["images"]]
    content += [{"type": "audio"} for _ in question["audios"]]
    content.append({"type": "text", "text": question["text"]})
    messages = [
        {"role": "system", "content": [{"type": "text", "text": question["system"]}]},
        {"role": "user", "content": content},
    ]
    # Written with the processor in the release, with the tokenizer by transformers 5.
    template = processor.chat_template or processor.tokenizer.chat_template
    text = processor.tokenizer.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    media: dict[str, Any] = {}
    if question["images"]:
        media["images"] = [Image.open(path).convert("RGB") for path in question["images"]]
    if question["audios"]:
        media["audio"] = [np.load(path) for path in question["audios"]]
    inputs = dict(processor(text=text, return_tensors="pt", **media))
    if int(transformers.__version__.split(".")[0]) >= 5 and "pixel_values" in inputs:
        # Without its prefix generate() hands it to the talker too, which 5.19 refuses.
        inputs["thinker_pixel_values"] = inputs.pop("pixel_values")
    if left_pad:
        padding = torch.tensor([[processor.tokenizer.pad_token_id]])
        inputs["input_ids"] = torch.cat([padding, inputs["input_ids"]], dim=1)
        inputs["attention_mask"] = torch.cat([torch.zeros_like(padding), inputs["attention_mask"]], dim=1)
    return inputs


def main() -> None:
    """Load the checkpoint, answer every question, write answers.json and one .npy of audio each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--left-pad", action="store_true")
    arguments = parser.parse_args()
    asked = json.loads(arguments.questions.read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    processor = Qwen2_5OmniProcessor.from_pretrained(arguments.checkpoint)
    # The second name of the argument is not known to the older version.
    model = Qwen2_5OmniForConditionalGeneration.from_pretrained(arguments.checkpoint, torch_dtype=torch.float32).eval()
    recorder = Recorder(model, asked["seed"])
    answers = {}
    for question in asked["questions"]:
        inputs = encode(processor, question, left_pad=arguments.left_pad)
        length = inputs["input_ids"].shape[1]
        sequences, audio = model.generate(**inputs, **asked["generate"])
        np.save(arguments.out / f"{question['name']}.npy", audio.reshape(-1).float().numpy())
        answers[question["name"]] = {
            "prompt": sequences[0, int(arguments.left_pad) : length].tolist(),
            "text": sequences[0, length:].tolist(),
            "codec": recorder.codec_tokens,
            "sounded": recorder.sounded,
        }
    report = {"transformers": transformers.__version__, "torch": torch.__version__, "answers": answers}
    (arguments.out / "answers.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
