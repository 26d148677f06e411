"""Processors of the edges: the upstream stage's tensors in, the downstream engine's input out. Pure functions.

The talker reads, at every position, one row that comes from the thinker and (except over the prompt) one codec token:

    position   0 .. P-1          P            P+1         P+2 ...        then        after that
    row        x[0] .. x[P-1]    text start   x[P]        x[P+1] ...     text end    text padding, held
    token      mask              padding      start       codec tokens that the talker samples

x is the sum of the thinker's hidden state and embedding, P the prompt's tokens. Source: transformers 5.19,
Qwen2_5OmniForConditionalGeneration.generate and Qwen2_5OmniTalkerForConditionalGeneration.forward. The latter adds the
padding and start tokens only when it is given an attention mask, which transformers' generate() drops when it is all
ones; the model was trained with them, and so they are added here always.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from omni_stage.errors import InvalidTensorError
from omni_stage.models.qwen2_5_omni.checkpoint import CodecTokens


@dataclass(frozen=True, slots=True)
class TextRows:
    """Embedding rows [1, H] of the thinker that frame the text which the talker reads."""

    start: torch.Tensor
    """Of the voice."""
    end: torch.Tensor
    padding: torch.Tensor


@dataclass(frozen=True, slots=True)
class TalkerPrompt:
    """The talker's input."""

    prompt_token_ids: list[int]
    """P + 2 codec token ids."""
    input_rows: torch.Tensor
    """[R, H], R >= P + 2: row p belongs to position p; the last is held."""
    mrope_positions: torch.Tensor
    """int64 [P + 2, 3]."""
    mrope_delta: int
    """Position of the first sampled token minus P + 2."""


def thinker2talker(tensors: Mapping[str, torch.Tensor], text: TextRows, codec: CodecTokens) -> TalkerPrompt | None:
    """Turn what the thinker published into the talker's input; None if the thinker replied with nothing to speak.

    tensors: x [T, H], mrope_positions int64 [P, 3], mrope_delta int64 [1]; T >= P.
    Raises InvalidTensorError naming the tensor.
    """
    x = _take(tensors, "x", 2)
    positions = _take(tensors, "mrope_positions", 2)
    delta = _take(tensors, "mrope_delta", 1)
    if x.shape[1] != text.start.shape[1]:
        raise InvalidTensorError(
            f"x: a row has {x.shape[1]} values, this checkpoint's have {text.start.shape[1]}", field="tensors.x"
        )
    if positions.shape[1] != 3 or positions.shape[0] < 1:
        raise InvalidTensorError(
            f"mrope_positions: must be [prompt tokens, 3], got {list(positions.shape)}", field="tensors.mrope_positions"
        )
    if delta.shape[0] != 1:
        raise InvalidTensorError(
            f"mrope_delta: must have one row, got {delta.shape[0]}", field="tensors.mrope_delta", limit=1
        )
    prompt_length = positions.shape[0]
    if x.shape[0] < prompt_length:
        raise InvalidTensorError(
            f"x: {x.shape[0]} rows are fewer than the {prompt_length} prompt tokens of mrope_positions",
            field="tensors.x",
        )
    if x.shape[0] == prompt_length:
        return None
    start, end, padding = (row.to(x.dtype) for row in (text.start, text.end, text.padding))
    following = prompt_length + int(delta)
    return TalkerPrompt(
        prompt_token_ids=[codec.mask] * prompt_length + [codec.padding, codec.start],
        input_rows=torch.cat([x[:prompt_length], start, x[prompt_length:], end, padding]),
        mrope_positions=torch.cat([positions, positions.new_tensor([[following] * 3, [following + 1] * 3])]),
        mrope_delta=int(delta),
    )


def talker2token2wav(tensors: Mapping[str, torch.Tensor], code_limit: int, max_codes: int) -> torch.Tensor | None:
    """The codec tokens int64 [N] to sound; None if there are none.

    Raises InvalidTensorError if one of them is not in [0, code_limit) or they are more than max_codes.
    """
    codes = _take(tensors, "codes", 1)
    if codes.shape[0] == 0:
        return None
    if codes.shape[0] > max_codes:
        raise InvalidTensorError(
            f"codes: {codes.shape[0]} tokens, at most {max_codes} can be sounded at once; lower max_tokens upstream",
            field="tensors.codes",
            limit=max_codes,
        )
    if int(codes.min()) < 0 or int(codes.max()) >= code_limit:
        raise InvalidTensorError(
            f"codes: every token must be at least 0 and below {code_limit}", field="tensors.codes", limit=code_limit
        )
    return codes


def _take(tensors: Mapping[str, torch.Tensor], name: str, dimensions: int) -> torch.Tensor:
    tensor = tensors.get(name)
    if tensor is None:
        raise InvalidTensorError(
            f"{name}: is missing; the upstream stage sent {', '.join(sorted(tensors)) or 'nothing'}",
            field=f"tensors.{name}",
        )
    if tensor.dim() != dimensions:
        raise InvalidTensorError(
            f"{name}: must have {dimensions} dimensions, got {tensor.dim()}", field=f"tensors.{name}", limit=dimensions
        )
    return tensor
