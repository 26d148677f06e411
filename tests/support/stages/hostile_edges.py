"""Tensors that satisfy the schemas of a family's edges but make no sense, and valid ones that they are based on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

BIG = 2**62
Tensors = Mapping[str, torch.Tensor]
_PROMPT, _ROWS = 4, 6


@dataclass(frozen=True)
class HostileFamily:
    """Inputs of a family's talker and of its last stage."""

    audio_stage: str
    talker: Callable[[Any], Tensors]
    """The talker's component -> valid input tensors."""
    hostile_talker: Callable[[Any], Mapping[str, Tensors]]
    """The talker's component -> description of a fault -> tensors that replace valid ones."""
    codes: Callable[[Any, int], torch.Tensor]
    """The last stage's component and a code -> a sequence of codes that contains this code."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters of the last stage."""


def _qwen25_talker(component: Any) -> Tensors:
    spec = component.input_schema.spec("x")
    return {
        "x": torch.full((_ROWS, spec.row_shape[0]), 0.1, dtype=getattr(torch, spec.dtype)),
        "token_ids": torch.arange(_ROWS),
        "mrope_positions": torch.arange(_PROMPT)[:, None].repeat(1, 3),
        "mrope_delta": torch.zeros(1, dtype=torch.int64),
    }


def _position(value: int) -> torch.Tensor:
    positions = torch.arange(_PROMPT)[:, None].repeat(1, 3)
    positions[-1, 1] = value
    return positions


QWEN25_TALKER: dict[str, Tensors] = {
    "position far beyond": {"mrope_positions": _position(10**9)},
    "position beyond 32 bits": {"mrope_positions": _position(BIG)},
    "position below zero": {"mrope_positions": _position(-1)},
    "position far below zero": {"mrope_positions": _position(-BIG)},
    "delta far beyond": {"mrope_delta": torch.tensor([10**9])},
    "delta beyond 32 bits": {"mrope_delta": torch.tensor([BIG])},
    "delta far below zero": {"mrope_delta": torch.tensor([-BIG])},
    "no delta": {"mrope_delta": torch.zeros(0, dtype=torch.int64)},
    "no prompt": {"mrope_positions": torch.zeros(0, 3, dtype=torch.int64)},
    "prompt longer than the rows": {"mrope_positions": torch.arange(9)[:, None].repeat(1, 3)},
}


def _qwen3_talker(component: Any) -> Tensors:
    text = component._checkpoint.text
    prompt = [text.message_start, text.user, 5, text.message_start, text.assistant, 5]
    return {"token_ids": torch.tensor([*prompt, 7, 8]), "prompt_tokens": torch.tensor([len(prompt)])}


def _qwen3_hostile_talker(component: Any) -> Mapping[str, Tensors]:
    good, checkpoint = _qwen3_talker(component)["token_ids"], component._checkpoint
    heard = good.clone()
    heard[2] = checkpoint.placeholder_ids[0]
    row = torch.full((1, checkpoint.hidden_size), 0.1, dtype=getattr(torch, checkpoint.dtype))
    place = torch.full((1, 3), 2)

    def with_id(value: int) -> torch.Tensor:
        ids = good.clone()
        ids[-1] = value
        return ids

    return {
        "id beyond the table": {"token_ids": with_id(checkpoint.vocab_size)},
        "id beyond 32 bits": {"token_ids": with_id(BIG)},
        "id below zero": {"token_ids": with_id(-1)},
        "id far below zero": {"token_ids": with_id(-BIG)},
        "prompt longer than the ids": {"prompt_tokens": torch.tensor([9])},
        "prompt far longer than the ids": {"prompt_tokens": torch.tensor([BIG])},
        "prompt of no token": {"prompt_tokens": torch.tensor([0])},
        "prompt below zero": {"prompt_tokens": torch.tensor([-BIG])},
        "two prompts": {"prompt_tokens": torch.tensor([6, 6])},
        "no prompt": {"prompt_tokens": torch.zeros(0, dtype=torch.int64)},
        "no assistant's turn": {"token_ids": torch.where(good == checkpoint.text.assistant, 5, good)},
        "a medium without rows": {"token_ids": heard},
        "rows without a medium": {"media": row, "media_positions": place},
        "a medium with two rows": {"token_ids": heard, "media": row.repeat(2, 1), "media_positions": place},
        "a medium with two positions": {"token_ids": heard, "media": row, "media_positions": place.repeat(2, 1)},
        "position far beyond": {"token_ids": heard, "media": row, "media_positions": place * 10**9},
        "position beyond 32 bits": {"token_ids": heard, "media": row, "media_positions": torch.full((1, 3), BIG)},
        "position below zero": {"token_ids": heard, "media": row, "media_positions": -place},
    }


def _qwen3_codes(component: Any, code: int) -> torch.Tensor:
    codes = torch.ones(3, component.input_schema.spec("codes").row_shape[0], dtype=torch.int64)
    codes[1, -1] = code
    return codes


HOSTILE_FAMILIES = {
    "qwen2_5_omni": HostileFamily(
        "token2wav",
        _qwen25_talker,
        lambda _: QWEN25_TALKER,
        lambda _, code: torch.tensor([1, code, 2]),
        {"num_inference_steps": 2},
    ),
    "qwen3_omni": HostileFamily("code2wav", _qwen3_talker, _qwen3_hostile_talker, _qwen3_codes),
}
