"""Edge processors: turn the upstream stage's tensors into the downstream engine's input. Without I/O.

At every position the talker reads one row from the thinker and (except within the prompt) one codec token:

    position   0 .. P-1          P            P+1         P+2 ...        then        after that
    row        x[0] .. x[P-1]    text start   x[P]        x[P+1] ...     text end    text padding, repeated
    token      mask              padding      start       codec tokens that the talker samples

x is the sum of the thinker's hidden state and embedding, and only the hidden state at a medium's placeholder. P is the
number of prompt tokens. Source: transformers 5.19, Qwen2_5OmniForConditionalGeneration.generate and
Qwen2_5OmniTalkerForConditionalGeneration.forward. The latter adds the padding and start tokens only if it gets an
attention mask, and transformers' generate() drops a mask that is all ones. The model was trained with these tokens, so
they are always added here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from omni_stage.errors import InvalidTensorError
from omni_stage.models.component import EdgeRows
from omni_stage.models.qwen2_5_omni.checkpoint import CodecTokens
from omni_stage.models.shared.talker_feed import TalkerPart, TalkerPrompt


@dataclass(frozen=True, slots=True)
class TextRows:
    """Embedding rows [1, H] of the thinker before and after the text that the talker reads."""

    start: torch.Tensor
    """Depends on the voice."""
    end: torch.Tensor
    padding: torch.Tensor


class TalkerConditioning:
    """Builds the table in the module's docstring. The result does not depend on how the thinker's rows are split."""

    def __init__(self, text: TextRows, codec: CodecTokens, positions: int) -> None:
        """`positions`: number of positions of the talker's rotary embedding."""
        self._text = text
        self._codec = codec
        self._positions = positions
        self._fresh: dict[str, list[torch.Tensor]] = {}
        self._ended = False
        self._complete: frozenset[str] = frozenset()
        self._next_position = 0

    def add(self, rows: EdgeRows) -> None:
        """Add rows of x [n, H], mrope_positions int64 [n, 3] and mrope_delta int64 [1]. Other tensors are ignored.

        Raises InvalidTensorError naming the tensor.
        """
        for name, dimensions in (("x", 2), ("mrope_positions", 2), ("mrope_delta", 1)):
            if name in rows.tensors:
                self._fresh.setdefault(name, []).append(_take(rows.tensors, name, dimensions))
            elif rows.ended and name not in self._fresh and not self._next_position:
                _take(rows.tensors, name, dimensions)
        if "x" in rows.tensors and rows.tensors["x"].shape[1] != self._text.start.shape[1]:
            raise InvalidTensorError(
                f"x: a row has {rows.tensors['x'].shape[1]} values, but must have {self._text.start.shape[1]}",
                field="tensors.x",
            )
        self._complete = self._complete | rows.complete
        self._ended = self._ended or rows.ended

    @property
    def ended(self) -> bool:
        """Whether all rows have arrived."""
        return self._ended

    def take(self) -> TalkerPart | None:
        """Returns a part with all rows whose positions are known; None if there is none. Raises InvalidTensorError."""
        if self._next_position == 0:
            return self._first_part() if self._is_startable() else None
        fresh = self._fresh.pop("x", [])
        if self._ended:
            fresh = [*fresh, *self._frame("end", "padding", like=fresh)]
        return self._place(torch.cat(fresh), None) if fresh else None

    def _is_startable(self) -> bool:
        """Returns whether the prompt's length is known and the first row after the prompt has arrived."""
        known = self._ended or {"mrope_positions", "mrope_delta"} <= self._complete
        if not known:
            return False
        prompt_length, rows = self._count("mrope_positions"), self._count("x")
        if self._ended and rows < prompt_length:
            raise InvalidTensorError(
                f"x: {rows} rows are fewer than the {prompt_length} prompt tokens of mrope_positions",
                field="tensors.x",
            )
        return rows > prompt_length

    def _first_part(self) -> TalkerPart:
        positions, delta = torch.cat(self._fresh["mrope_positions"]), torch.cat(self._fresh["mrope_delta"])
        if positions.shape[1] != 3 or positions.shape[0] < 1:
            raise InvalidTensorError(
                f"mrope_positions: must be [prompt tokens, 3], got {list(positions.shape)}",
                field="tensors.mrope_positions",
            )
        if delta.shape[0] != 1:
            raise InvalidTensorError(
                f"mrope_delta: must have one row, got {delta.shape[0]}", field="tensors.mrope_delta", limit=1
            )
        self._check_positions(positions, int(delta))
        length = positions.shape[0]
        x = torch.cat(self._fresh.pop("x"))
        self._fresh.clear()
        rows = [x[:length], *self._frame("start", like=[x]), x[length:]]
        if self._ended:
            rows += self._frame("end", "padding", like=[x])
        following = length + int(delta)
        prompt = TalkerPrompt(
            prompt_token_ids=[self._codec.mask] * length + [self._codec.padding, self._codec.start],
            input_rows=torch.cat(rows),
            mrope_positions=torch.cat([positions, positions.new_tensor([[following] * 3, [following + 1] * 3])]),
            mrope_delta=int(delta),
        )
        return self._place(prompt.input_rows, prompt)

    def _check_positions(self, positions: torch.Tensor, delta: int) -> None:
        """Check that all positions are within the rotary embedding's table.

        An index beyond the table would end the engine and every request in it. The limit here is a quarter of the
        length of vLLM's table, so a reply fits after the last accepted position.
        """
        limit = self._positions
        if int(positions.min()) < 0 or int(positions.max()) >= limit:
            raise InvalidTensorError(
                f"mrope_positions: every position must be at least 0 and below {limit}",
                field="tensors.mrope_positions",
                limit=limit,
            )
        if not 0 <= positions.shape[0] + delta < limit:
            raise InvalidTensorError(
                f"mrope_delta: the reply must begin at a position that is at least 0 and below {limit}",
                field="tensors.mrope_delta",
                limit=limit,
            )

    def _place(self, rows: torch.Tensor, prompt: TalkerPrompt | None) -> TalkerPart:
        offset = self._next_position
        self._next_position += rows.shape[0]
        return TalkerPart(offset, rows, prompt, last=self._ended)

    def _frame(self, *names: str, like: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the named fields of TextRows, in the dtype of the thinker's rows."""
        rows: list[torch.Tensor] = [getattr(self._text, name) for name in names]
        return [row.to(like[0].dtype) for row in rows] if like else rows

    def _count(self, name: str) -> int:
        return sum(part.shape[0] for part in self._fresh.get(name, ()))


def thinker2talker(
    tensors: Mapping[str, torch.Tensor], text: TextRows, codec: CodecTokens, positions: int
) -> TalkerPrompt | None:
    """Returns the talker's input from the thinker's tensors; None if the thinker's reply has no text to speak.

    `tensors`: x [T, H], mrope_positions int64 [P, 3], mrope_delta int64 [1]; T >= P. `positions`: see
    TalkerConditioning. Raises InvalidTensorError naming the tensor.
    """
    conditioning = TalkerConditioning(text, codec, positions)
    conditioning.add(EdgeRows(tensors, ended=True))
    part = conditioning.take()
    return None if part is None else part.prompt


def talker2token2wav(tensors: Mapping[str, torch.Tensor], code_limit: int, max_codes: int) -> torch.Tensor | None:
    """Returns the codec tokens int64 [N] to turn into audio; None if there are none.

    Raises InvalidTensorError if a token is not in [0, code_limit), or if there are more than max_codes tokens.
    """
    codes = _take(tensors, "codes", 1)
    if codes.shape[0] == 0:
        return None
    if codes.shape[0] > max_codes:
        raise InvalidTensorError(
            f"codes: {codes.shape[0]} tokens, at most {max_codes} fit one request; lower max_tokens upstream",
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
