"""The output of transformers' own Qwen3-Omni for a prompt: the reference that our stages are compared with.

It is computed by generate() for one request at a time, in float32, with greedy sampling. Three deviations make it work
as the model's code intends:

- The talker gets its attention mask. generate() turns a mask of ones into None (generation/utils.py, transformers
  5.19), and without a mask the talker omits the M-RoPE positions of media.
- The talker gets use_audio_in_video, which its get_rope_index accepts. generate() passes this argument only to the
  thinker, so the talker would treat a video with audio as text.
- A single forward of code2wav makes the audio, because code2wav's chunked_decode drops 555 samples every 300 frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3OmniMoeForConditionalGeneration, Qwen3OmniMoeProcessor

from support.models.reference import ReferencePrompt, describe_media


@dataclass(frozen=True)
class Qwen3Settings:
    """Lengths and voice of an answer."""

    thinker_tokens: int = 12
    frames: int = 10
    min_frames: int = 0
    voice: str = "Ethan"
    repetition_penalty: float = 1.0
    """Repetition penalty of the talker."""


@dataclass(frozen=True)
class Qwen3Reference:
    """The output of transformers for a prompt."""

    prompt_token_ids: list[int]
    thinker_token_ids: list[int]
    """Includes the end-of-text token if it was generated."""
    text: str
    codes: torch.Tensor
    """int64 [frames, groups]."""
    waveform: torch.Tensor
    """float32 [samples]."""


class Qwen3ReferenceModel:
    """transformers' model and processor of one checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self.processor = Qwen3OmniMoeProcessor.from_pretrained(checkpoint)
        model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32)
        self.model = model.eval()
        self._codes: list[torch.Tensor] = []
        self._heard = False
        self.model.code2wav.chunked_decode = self._decode
        # The talker's get_rope_index reads this for audio.
        self.model.talker.config.audio_config = self.model.config.thinker_config.audio_config
        place = self.model.talker._prepare_position_ids_for_generation

        def place_all(inputs: torch.Tensor, model_kwargs: dict[str, Any]) -> torch.Tensor:
            ids = model_kwargs["talker_input_ids"]
            intended = {"attention_mask": torch.ones_like(ids), "use_audio_in_video": self._heard}
            return place(inputs, {**model_kwargs, **intended})

        self.model.talker._prepare_position_ids_for_generation = place_all

    @torch.no_grad()
    def run(self, prompt: ReferencePrompt, settings: Qwen3Settings) -> Qwen3Reference:
        """Runs thinker, talker and code2wav. Returns their outputs."""
        inputs = self.encode(prompt)
        self._codes.clear()
        self._heard = bool(prompt.heard)
        sequences, _ = self.model.generate(
            **inputs,
            use_audio_in_video=self._heard,
            speaker=settings.voice,
            thinker_max_new_tokens=settings.thinker_tokens,
            thinker_eos_token_id=self.model.config.im_end_token_id,
            # One token more than frames: a frame's other codes are computed with the token after its first code.
            talker_max_new_tokens=settings.frames + 1,
            talker_min_new_tokens=settings.min_frames,
            talker_do_sample=False,
            talker_repetition_penalty=settings.repetition_penalty,
        )
        length = inputs["input_ids"].shape[1]
        tokens = sequences[0, length:].tolist()
        codes = self._codes[0][0].T
        return Qwen3Reference(
            prompt_token_ids=inputs["input_ids"][0].tolist(),
            thinker_token_ids=tokens,
            text=self.processor.tokenizer.decode(tokens, skip_special_tokens=True),
            codes=codes,
            waveform=self.model.code2wav(codes.T[None])[0, 0],
        )

    def encode(self, prompt: ReferencePrompt) -> dict[str, Any]:
        """Returns the processor's tensors."""
        content: list[dict[str, str]] = [{"type": "image"} for _ in prompt.images]
        content += [{"type": "audio"} for _ in prompt.audios]
        content += [{"type": "video"} for _ in prompt.videos]
        content.append({"type": "text", "text": prompt.text})
        system = [] if prompt.system is None else [{"role": "system", "content": prompt.system}]
        text = self.processor.tokenizer.apply_chat_template(
            [*system, *prompt.describe_history(), {"role": "user", "content": content}],
            chat_template=self.processor.chat_template,
            tokenize=False,
            add_generation_prompt=True,
        )
        return dict(self.processor(text=text, return_tensors="pt", **describe_media(prompt)))

    def _decode(self, codes: torch.Tensor, **_: Any) -> torch.Tensor:
        self._codes.append(codes)
        return torch.zeros(1, 1, 1)


@lru_cache(maxsize=8)
def load_qwen3_reference(checkpoint: Path) -> Qwen3ReferenceModel:
    """Returns transformers' model of a checkpoint, which is loaded once per process."""
    return Qwen3ReferenceModel(checkpoint)
