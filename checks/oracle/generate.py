"""Answers questions with transformers' generate() and writes the answers to files.

    python generate.py --checkpoint DIR --questions questions.json --out DIR [--left-pad]

Runs under both versions of transformers that `make oracle` compares. Imports nothing of this repository, because the
release's virtual environment does not have it.
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
    """Records the codes that pass from the talker to token2wav, which generate() does not return."""

    def __init__(self, model: Any, seed: int) -> None:
        self.codec_tokens: list[int] = []
        self.codes: list[int] = []
        talk, decode = model.talker.generate, model.token2wav.forward

        def talk_and_keep(*args: Any, **kwargs: Any) -> Any:
            result = talk(*args, **kwargs)
            self.codec_tokens = result[0, kwargs["input_ids"].shape[1] :].tolist()
            return result

        def decode_and_keep(code: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.codes = code[0].tolist()
            # token2wav draws its noise inside. The seed is set here so that earlier random numbers do not matter.
            torch.manual_seed(seed)
            return decode(code, *args, **kwargs)

        model.talker.generate = talk_and_keep
        model.token2wav.forward = decode_and_keep


def encode(processor: Any, question: dict[str, Any], *, left_pad: bool) -> dict[str, Any]:
    """Returns the processor's tensors for a question, with one padding token on the left if `left_pad`."""
    content: list[dict[str, str]] = [{"type": "image"} for _ in question["images"]]
    content += [{"type": "audio"} for _ in question["audios"]]
    content.append({"type": "text", "text": question["text"]})
    messages = [
        {"role": "system", "content": [{"type": "text", "text": question["system"]}]},
        {"role": "user", "content": content},
    ]
    # The release keeps the chat template in the processor, transformers 5 in the tokenizer.
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
        # Without the prefix "thinker_", generate() also passes the argument to the talker, which 5.19 refuses.
        inputs["thinker_pixel_values"] = inputs.pop("pixel_values")
    if left_pad:
        padding = torch.tensor([[processor.tokenizer.pad_token_id]])
        inputs["input_ids"] = torch.cat([padding, inputs["input_ids"]], dim=1)
        inputs["attention_mask"] = torch.cat([torch.zeros_like(padding), inputs["attention_mask"]], dim=1)
    return inputs


def main() -> None:
    """Loads the checkpoint and answers every question. Writes answers.json, and each answer's audio as a .npy file."""
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
    # The older version does not know the argument's new name, dtype.
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
            "codes": recorder.codes,
        }
    report = {"transformers": transformers.__version__, "torch": torch.__version__, "answers": answers}
    (arguments.out / "answers.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
