"""A talker's streamed input: turns the thinker's tokens and rows, as they arrive, into parts of the engine's input.

Rows of the thinker's embedding table are read from the checkpoint's files when they are needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from safetensors import safe_open

from omni_stage.errors import ConfigurationError, InvalidRequestError, InvalidTensorError
from omni_stage.models.component import EdgeInput, EdgeRows, EngineInput, FinishReason, InputPart, StageRequest
from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.payloads.input_digests import digest_inputs

THINKER_EMBEDDING: Final = "thinker.model.embed_tokens.weight"
"""The thinker's input embedding, in the checkpoints of both Omni families."""
_INDEX: Final = "model.safetensors.index.json"


class EmbeddingTable:
    """One embedding table. Its file stays open, and the kernel caches its pages. Safe to use from several threads."""

    def __init__(self, path: Path, name: str, dtype: torch.dtype) -> None:
        """`name`: the tensor's name; `dtype`: dtype of the returned rows. Raises ConfigurationError."""
        file = path / _find_shard(path, name)
        self._name = name
        self._dtype = dtype
        try:
            # The file must stay open as long as this table is used: slices are read through it.
            self._file: Any = safe_open(file, framework="pt")
            self._table: Any = self._file.get_slice(name)  # type: ignore[no-untyped-call]
            self.rows, self.width = (int(size) for size in self._table.get_shape())
        except Exception as error:  # safetensors has no public base class for its errors
            raise ConfigurationError(
                f"cannot read {name} from {file}: {type(error).__name__}", field="model.path"
            ) from error

    def read(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows [n, width] of token ids int64 [n], on the CPU. Every id must be in [0, self.rows)."""
        distinct, places = torch.unique(token_ids, return_inverse=True)
        if not distinct.numel():
            return torch.empty(0, self.width, dtype=self._dtype)
        rows = torch.cat([self._table[token_id : token_id + 1] for token_id in distinct.tolist()])
        return rows.to(self._dtype)[places]


def _find_shard(directory: Path, name: str) -> str:
    index = directory / _INDEX
    if not index.exists():
        return "model.safetensors"
    try:
        return str(json.loads(index.read_text(encoding="utf-8"))["weight_map"][name])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"{index} does not say where {name} is", field="model.path") from error


REPEAT_SECONDS: Final = 10.0
"""A talker's stream ends when the same token fills this much speech."""


def repeat_limit(pace: Mapping[str, Any]) -> int:
    """Returns how often in a row a token may be sampled. `pace`: the family's schemas.find_pace."""
    return max(1, round(REPEAT_SECONDS * float(pace["tokens_per_second"])))


@dataclass(frozen=True, slots=True)
class TalkerPrompt:
    """The talker's prompt of N tokens."""

    prompt_token_ids: list[int]
    """N ids of the talker's vocabulary."""
    input_rows: torch.Tensor
    """[R, H], R >= N: row p belongs to position p."""
    mrope_positions: torch.Tensor
    """int64 [N, 3]."""
    mrope_delta: int
    """M-RoPE position of the first sampled token minus N."""


@dataclass(frozen=True, slots=True)
class TalkerPart:
    """The talker's input made from some of the thinker's rows."""

    offset: int
    """Position to which the first row belongs."""
    rows: torch.Tensor
    """[n, H], n >= 1."""
    prompt: TalkerPrompt | None = None
    """Set in the first part only; `rows` are then its input_rows."""
    last: bool = False
    """Whether the text has ended. The last row is then used for all later positions."""

    @property
    def max_tokens(self) -> int | None:
        """Number of codec tokens that can be sampled with these rows; None if these are the last rows.

        From the prompt's last position on, one token is sampled at each position that has a row.
        """
        if self.last:
            return None
        return self.rows.shape[0] - (0 if self.prompt is None else len(self.prompt.prompt_token_ids) - 1)


class Conditioning(Protocol):
    """Assigns the thinker's output, as it arrives, to the talker's positions.

    The result does not depend on how the output is split on arrival.
    """

    @property
    def ended(self) -> bool:
        """Whether all input has arrived."""
        ...

    def add(self, rows: EdgeRows) -> None:
        """Add rows. Raises InvalidTensorError."""
        ...

    def take(self) -> TalkerPart | None:
        """Returns a part with all rows whose positions are known; None if there is none. Raises InvalidTensorError."""
        ...


class TalkerFeed:
    """An InputFeed of rows. After the prompt the engine needs only rows, because it samples the tokens itself."""

    def __init__(
        self,
        conditioning: Conditioning,
        stop_ids: Sequence[int],
        *,
        ignore_eos: bool,
        repeat_limit: int,
        settings: Mapping[str, list[Any]] | None = None,
    ) -> None:
        """`stop_ids`: tokens that end the codec stream. With `ignore_eos` they are never sampled: the stream continues
        to max_tokens.

        `repeat_limit`: the stream ends when one token was sampled this many times in a row, except with `ignore_eos`.
        Occasionally a talker does not sample a stop id, and hums or is silent until max_tokens. Normal speech stays far
        below the limit, which transformers does not have. `settings`: further values for the model, sent with the first
        part.
        """
        self._conditioning = conditioning
        self._suppress: Sequence[int] = stop_ids if ignore_eos else ()
        self._stop: Sequence[int] = () if ignore_eos else stop_ids
        self._repeat_limit = None if ignore_eos else repeat_limit
        self._settings = dict(settings or {})

    def add(self, rows: EdgeRows) -> None:
        """Add the thinker's output. Raises InvalidTensorError."""
        self._conditioning.add(rows)

    def next_part(self) -> InputPart | None:
        """Returns the rows whose positions are known, or None. A reply without text ends as EMPTY_INPUT."""
        part = self._conditioning.take()
        if part is None:
            if not self._conditioning.ended:
                return None
            return InputPart(EngineInput(prompt={}, finished=FinishReason.EMPTY_INPUT), last=True)
        information: dict[str, torch.Tensor | list[Any]] = {"input_rows": part.rows}
        prompt: dict[str, Any] = {}
        digests = b""
        if part.prompt is None:
            information["input_rows_offset"] = [part.offset]
        else:
            prompt["prompt_token_ids"] = part.prompt.prompt_token_ids
            information["mrope_positions"] = part.prompt.mrope_positions
            information["mrope_delta"] = [part.prompt.mrope_delta]
            information |= self._settings
            digests = digest_inputs(part.rows, part.prompt.mrope_positions)
        engine_input = EngineInput(
            prompt=prompt,
            additional_information=AdditionalInformationPayload.from_mapping(information),
            input_digests=digests,
            suppress_token_ids=self._suppress,
            stop_token_ids=self._stop,
            repeat_limit=self._repeat_limit,
        )
        return InputPart(engine_input, max_tokens=part.max_tokens, last=part.last)


def prepare_whole(request: StageRequest, feed: TalkerFeed, *, component: str, missing: str) -> EngineInput:
    """Returns a talker's input made from the thinker's complete tensors. A reply without text ends as EMPTY_INPUT.

    `component`: the talker's id; `missing`: the tensor that the error names if the tensors are empty. Raises
    InvalidRequestError for a request without tensors, and InvalidTensorError.
    """
    if not isinstance(request.source, EdgeInput):
        raise InvalidRequestError(f"component {component} reads tensors of a thinker, not a prompt")
    feed.add(EdgeRows(request.source.tensors, ended=True))
    part = feed.next_part()
    if part is None:
        raise InvalidTensorError(f"{missing}: is empty", field=f"tensors.{missing}")
    return part.input
