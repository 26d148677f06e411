"""The output of transformers' own Qwen2.5-Omni for a prompt: the reference that our stages are compared with.

It is computed for one request at a time, in float32, with greedy sampling. The talker is stepped by hand instead of by
generate(), which turns an attention mask of ones into None (generation/utils.py, transformers 5.19). Without a mask,
the talker's forward omits the codec padding token, the codec start token and the M-RoPE positions, contrary to the
intent of its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor, RepetitionPenaltyLogitsProcessor

from omni_stage.models.component import AudioPart, ChatMessage, ImagePart, TextPart, UserPrompt, VideoPart

AUDIO_RATE_HZ = 16_000
SPEECH_SYSTEM_PROMPT = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and "
    "visual inputs, as well as generating text and speech."
)
"""Copied from the model card, not from our code."""
PLAIN_SYSTEM_PROMPT = "You are a helpful assistant."
"""The chat template's default. It is much shorter than SPEECH_SYSTEM_PROMPT."""


@dataclass(frozen=True)
class ReferencePrompt:
    """A prompt whose last message has media first, then text. May have a system message and earlier turns of text."""

    text: str
    images: Sequence[Image] = ()
    audios: Sequence[np.ndarray] = ()
    """float32 [samples] at 16 kHz each."""
    videos: Sequence[np.ndarray] = ()
    """uint8 [frames, height, width, 3] each, at two frames a second, in a size that the processor does not change."""
    heard: Sequence[np.ndarray] = ()
    """The videos' audio, float32 [samples] at 16 kHz each; either for all videos or for none."""
    system: str | None = None
    """None: the prompt has no system message. For Qwen2.5-Omni, the one that speech needs is added."""
    history: Sequence[tuple[str, str]] = ()
    """Earlier turns: what the user said, and the reply."""

    def to_user_prompt(self) -> UserPrompt:
        """Returns the same prompt in the form that our stages accept."""
        parts: list[Any] = [ImagePart(image) for image in self.images]
        parts += [AudioPart(audio, AUDIO_RATE_HZ) for audio in self.audios]
        for index, frames in enumerate(self.videos):
            audio = AudioPart(self.heard[index], AUDIO_RATE_HZ) if self.heard else None
            parts.append(VideoPart(frames, audio))
        system = [] if self.system is None else [ChatMessage("system", [TextPart(self.system)])]
        earlier = [ChatMessage(turn["role"], [TextPart(turn["content"])]) for turn in self.describe_history()]
        return UserPrompt(messages=[*system, *earlier, ChatMessage("user", [*parts, TextPart(self.text)])])

    def describe_history(self) -> list[dict[str, str]]:
        """Returns the messages of the earlier turns in transformers' form."""
        roles = ("user", "assistant")
        return [
            {"role": role, "content": text} for turn in self.history for role, text in zip(roles, turn, strict=True)
        ]


@dataclass(frozen=True)
class Reference:
    """The output of transformers for a prompt."""

    prompt_token_ids: list[int]
    thinker_token_ids: list[int]
    """Includes the end-of-text token if it was generated."""
    text: str
    rows: torch.Tensor
    """float32 [T, H]: hidden state plus embedding of each position; for media only the hidden state."""
    codec_token_ids: list[int]
    """Includes the token that ended the stream, if one was generated."""
    codes: list[int]
    """The codec tokens without end-of-stream and padding."""
    waveform: torch.Tensor
    """float32 [samples]; empty if there are no codes."""
    mrope_positions: torch.Tensor = field(repr=False)
    """int64 [P, 3], of the prompt's P tokens."""


@dataclass(frozen=True)
class ReferenceSettings:
    """Lengths, voice and seed of an answer."""

    thinker_tokens: int = 12
    talker_tokens: int = 24
    seed: int = 7
    voice: str = "Chelsie"
    steps: int = 10
    guidance: float = 0.5
    repetition_penalty: float = 1.0
    """Repetition penalty of the talker."""


class ReferenceModel:
    """transformers' model and processor of one checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self.processor = Qwen2_5OmniProcessor.from_pretrained(checkpoint)
        model = Qwen2_5OmniForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32)
        self.model = model.eval()

    @torch.no_grad()
    def run(self, prompt: ReferencePrompt, settings: ReferenceSettings) -> Reference:
        """Runs thinker, talker and token2wav. Returns their outputs."""
        inputs = self.encode(prompt)
        prompt_ids = inputs["input_ids"][0].tolist()
        tokens, hidden, embeddings = self._think(inputs, prompt, settings)
        rows = hidden + embeddings
        codec_tokens, positions = self._talk(inputs, bool(prompt.heard), tokens, rows, settings)
        stops = self._codec_stops()
        codes = [token for token in codec_tokens if token not in stops]
        return Reference(
            prompt_token_ids=prompt_ids,
            thinker_token_ids=tokens,
            text=self.processor.tokenizer.decode(tokens, skip_special_tokens=True),
            rows=rows,
            codec_token_ids=codec_tokens,
            codes=codes,
            waveform=self.speak(codes, settings),
            mrope_positions=positions,
        )

    def encode(self, prompt: ReferencePrompt) -> dict[str, Any]:
        """Returns the processor's tensors."""
        content: list[dict[str, str]] = [{"type": "image"} for _ in prompt.images]
        content += [{"type": "audio"} for _ in prompt.audios]
        content += [{"type": "video"} for _ in prompt.videos]
        content.append({"type": "text", "text": prompt.text})
        system = SPEECH_SYSTEM_PROMPT if prompt.system is None else prompt.system
        messages = [
            {"role": "system", "content": system},
            *prompt.describe_history(),
            {"role": "user", "content": content},
        ]
        text = self.processor.tokenizer.apply_chat_template(
            messages, chat_template=self.processor.chat_template, tokenize=False, add_generation_prompt=True
        )
        return dict(self.processor(text=text, return_tensors="pt", **describe_media(prompt)))

    @torch.no_grad()
    def speak(self, codes: Sequence[int], settings: ReferenceSettings) -> torch.Tensor:
        """Returns the audio of codec tokens. Calls torch.manual_seed immediately before token2wav."""
        if not codes:
            return torch.empty(0)
        speaker = self.model.speaker_map[settings.voice]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            audio = self.model.token2wav(
                torch.tensor([codes]),
                conditioning=speaker["cond"].float(),
                reference_mel=speaker["ref_mel"].float(),
                num_steps=settings.steps,
                guidance_scale=settings.guidance,
            )
        return audio.reshape(-1).float()

    def _think(
        self, inputs: dict[str, Any], prompt: ReferencePrompt, settings: ReferenceSettings
    ) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        thinker = self.model.thinker
        result = thinker.generate(
            **inputs,
            use_audio_in_video=bool(prompt.heard),
            max_new_tokens=settings.thinker_tokens,
            do_sample=False,
            output_hidden_states=True,
            return_dict_in_generate=True,
            eos_token_id=self.model.config.thinker_config.eos_token_id,
        )
        prompt_length = inputs["input_ids"].shape[1]
        tokens = result.sequences[0, prompt_length:].tolist()
        hidden = torch.cat([step[-1][0] for step in result.hidden_states])
        embeddings = torch.cat([step[0][0] for step in result.hidden_states]).clone()
        config = self.model.config.thinker_config
        media = (config.audio_token_index, config.image_token_index, config.video_token_index)
        embeddings[:prompt_length][torch.isin(inputs["input_ids"][0], torch.tensor(media))] = 0
        return tokens, hidden, embeddings

    def _talk(
        self, inputs: dict[str, Any], heard: bool, tokens: list[int], rows: torch.Tensor, settings: ReferenceSettings
    ) -> tuple[list[int], torch.Tensor]:
        """Returns the codec tokens, and the M-RoPE positions [P, 3] of the prompt."""
        talker, prompt_ids = self.model.talker, inputs["input_ids"]
        prompt_length = prompt_ids.shape[1]
        bos = self.model.speaker_map[settings.voice]["bos_token"]
        embed = self.model.thinker.get_input_embeddings()
        text_ids = torch.cat([prompt_ids, torch.tensor([[bos, tokens[0]]])], dim=1)
        media = {
            "image_grid_thw": inputs.get("image_grid_thw"),
            "video_grid_thw": inputs.get("video_grid_thw"),
            "use_audio_in_video": heard,
            "audio_feature_lengths": None,
            "video_second_per_grid": inputs.get("video_second_per_grid"),
        }
        if "feature_attention_mask" in inputs:
            media["audio_feature_lengths"] = inputs["feature_attention_mask"].sum(-1)
        mask = torch.ones(1, prompt_length + 2, dtype=torch.long)
        positions, _ = talker.get_rope_index(text_ids, attention_mask=mask, **_rope_names(media))
        if rows.shape[0] == prompt_length:
            return [], positions[:, 0, :prompt_length].T
        frame = embed(torch.tensor([[bos, talker.text_eos_token, talker.text_pad_token]]))
        reply = rows[None, prompt_length:]
        step = {"inputs_embeds": torch.cat([rows[None, :prompt_length], frame[:, :1], reply[:, :1]], dim=1)}
        reply = torch.cat([reply[:, 1:], frame[:, 1:]], dim=1)
        talker.rope_deltas = None
        codec_prompt = [talker.codec_mask_token] * prompt_length + [talker.codec_pad_token, talker.codec_bos_token]
        penalize = RepetitionPenaltyLogitsProcessor(settings.repetition_penalty)
        stops, cache = self._codec_stops(), None
        written: list[int] = []
        for _ in range(settings.talker_tokens):
            output = talker(
                **step,
                attention_mask=mask,
                past_key_values=cache,
                thinker_reply_part=reply,
                input_text_ids=text_ids,
                use_cache=True,
                **media,
            )
            cache, reply = output.past_key_values, output.thinker_reply_part
            # As in generate(), positions continue from that of the prompt's last token, which need not be the largest.
            talker.rope_deltas = positions[:, :, -1].max()[None, None] + 1 - text_ids.shape[1]
            logits = penalize(torch.tensor([codec_prompt + written]), output.logits[:, -1].clone())[0]
            logits[talker.codec_bos_token] = -torch.inf
            written.append(int(logits.argmax()))
            if written[-1] in stops:
                break
            step = {"input_ids": torch.tensor([[written[-1]]])}
            mask = torch.cat([mask, mask.new_ones(1, 1)], dim=1)
        return written, positions[:, 0, :prompt_length].T

    def _codec_stops(self) -> set[int]:
        return {self.model.talker.codec_pad_token, self.model.talker.codec_eos_token}


def describe_media(prompt: ReferencePrompt) -> dict[str, Any]:
    """Returns the processor's arguments for a prompt's media."""
    media: dict[str, Any] = {}
    if prompt.images:
        media["images"] = list(prompt.images)
    if prompt.audios or prompt.heard:
        media["audio"] = [*prompt.audios, *prompt.heard]
    if prompt.videos:
        media |= {"videos": list(prompt.videos), "fps": 2.0, "use_audio_in_video": bool(prompt.heard)}
    return media


def _rope_names(media: dict[str, Any]) -> dict[str, Any]:
    """Returns forward's arguments under the names that get_rope_index uses for them."""
    return {
        "image_grid_thw": media["image_grid_thw"],
        "video_grid_thw": media["video_grid_thw"],
        "use_audio_in_video": media["use_audio_in_video"],
        "audio_seqlens": media["audio_feature_lengths"],
        "second_per_grids": media["video_second_per_grid"],
    }


@lru_cache(maxsize=8)
def load_reference(checkpoint: Path) -> ReferenceModel:
    """Returns transformers' model of a checkpoint, which is loaded once per process."""
    return ReferenceModel(checkpoint)
