"""The tables: how long each stage's step takes on one kind of GPU, and the shapes of the tensors that the stages send.

A table is a directory with a config.json. It takes the place of a checkpoint: spec.model.uri names it. The tables in
`tables/` name the source of every figure. docs/load-tests.md describes how to write one for your own GPU.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError, model_validator

from omni_proto.stage_config import ConfigModel
from omni_stage.errors import ConfigurationError

BUILT_IN: Final = Path(__file__).parent / "tables"

Curve = Annotated[dict[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0)]], Field(min_length=1)]
"""Milliseconds, by a count such as the number of requests. The curve is constant before the first point and linear
between points. Past the last point it continues the last segment."""


class TextShape(ConfigModel):
    """The thinker."""

    step_ms: Curve
    """Milliseconds of a step, by the number of requests in it."""
    prompt_token_ms: Annotated[float, Field(ge=0)]
    """Additional milliseconds for each prompt token that the step computes."""
    attention_pair_ns: Annotated[float, Field(ge=0)] = 0.0
    """Additional nanoseconds for each pair of such a token and an earlier one of its request."""
    kv_token_bytes: Annotated[int, Field(ge=1)]
    """Bytes of KV cache for one token."""
    kv_memory_mib: Annotated[int, Field(ge=1)]
    """MiB of KV cache if engineArgs does not set it."""
    row_values: Annotated[int, Field(ge=0, le=1 << 16)]
    """bfloat16 values in the row that the talker reads for each position. 0 if text is sent as ids only."""
    reply_tokens: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
    """Shortest and longest reply, in tokens, of requests that set no length. The seed selects a length in between."""

    @model_validator(mode="after")
    def _check_reply(self) -> TextShape:
        if self.reply_tokens[0] > self.reply_tokens[1]:
            raise ValueError("replyTokens must be the shortest and then the longest reply")
        return self


class CodecShape(ConfigModel):
    """The talker: one step is one frame of audio, however many codes a frame has."""

    step_ms: Curve
    """Milliseconds of a step, by the number of requests in it. Includes all codes of their frames."""
    prompt_token_ms: Annotated[float, Field(ge=0)]
    """Additional milliseconds for each prompt row that the step computes."""
    attention_pair_ns: Annotated[float, Field(ge=0)] = 0.0
    """See TextShape."""
    kv_token_bytes: Annotated[int, Field(ge=1)]
    """Bytes of KV cache for one position."""
    kv_memory_mib: Annotated[int, Field(ge=1)]
    """MiB of KV cache if engineArgs does not set it."""
    frame_codes: Annotated[int, Field(ge=1, le=64)]
    """Number of codes in a frame."""
    frames_per_second: Annotated[float, Field(gt=0)]
    """Frames per second of speech."""
    seconds_per_text_token: Annotated[float, Field(gt=0)]
    """Seconds of speech per token of text."""


class AudioShape(ConfigModel):
    """The decoder: a step computes one window of frames for each request in it."""

    frame_ms: Curve
    """Milliseconds per frame of the longest window, by the number of requests in the step."""
    least_ms: Annotated[float, Field(ge=0)] = 0.0
    """Shortest duration of a step: the cost of its kernel launches."""
    whole_factor: Annotated[float, Field(gt=0)] = 1.0
    """Factor on frameMs for an utterance that is computed in one window."""
    max_batch: Annotated[int, Field(ge=1)] = 64
    """Maximum number of windows in a step."""
    first_frames: Annotated[int, Field(ge=1)]
    """Number of new frames in the first window."""
    next_frames: Annotated[int, Field(ge=1)]
    """Number of new frames in every later window."""
    most_frames: Annotated[int, Field(ge=1)] | None = None
    """If set, a later window has the frames that wait, at most this many, as in Qwen3-Omni's code2wav (GathersRows);
    nextFrames is then the fewest. With 1, no window waits for more."""
    back_frames: Annotated[int, Field(ge=0)] = 0
    """Number of frames before its new frames that a window computes again."""
    ahead_frames: Annotated[int, Field(ge=0)] = 0
    """Number of frames after its new frames that a window reads."""


class Table(ConfigModel):
    """One model on one kind of GPU, with one GPU per stage."""

    model_type: Literal["omnipipeline_sim"]
    """Identifies the file as a table."""
    title: str
    """The model and the GPU."""
    sources: Annotated[dict[str, str], Field(min_length=1)]
    """Source of each figure, by field, with the derivation of figures that were not measured."""
    thinker: TextShape
    talker: CodecShape
    decoder: AudioShape

    @property
    def samples_per_frame(self) -> int:
        """Audio samples per frame at 24 kHz."""
        return round(24_000 / self.talker.frames_per_second)


def interpolate(curve: Mapping[int, float]) -> Callable[[float], float]:
    """Returns a function that gives the milliseconds at a count."""
    counts = sorted(curve)
    values = [curve[count] for count in counts]

    def at(count: float) -> float:
        if count <= counts[0] or len(counts) == 1:
            return values[0]
        right = min(bisect_left(counts, count), len(counts) - 1)
        share = (count - counts[right - 1]) / (counts[right] - counts[right - 1])
        return values[right - 1] + (values[right] - values[right - 1]) * share

    return at


def token_cost(shape: TextShape | CodecShape) -> Callable[[int, int, int], float]:
    """Returns a function that gives a step's milliseconds from its numbers of requests, of prompt tokens and of pairs
    of one of these and an earlier token."""
    step, token_ms, pair_ms = interpolate(shape.step_ms), shape.prompt_token_ms, shape.attention_pair_ns / 1e6
    return lambda requests, prompt_tokens, pairs: step(requests) + prompt_tokens * token_ms + pairs * pair_ms


def audio_cost(shape: AudioShape) -> Callable[[int, int, bool], float]:
    """Returns a function that gives the milliseconds of a decoder's step.

    Its arguments: number of windows, frames of the longest window, whether that window is a complete utterance.
    """
    frame = interpolate(shape.frame_ms)

    def cost(windows: int, frames: int, is_whole: bool) -> float:
        return max(shape.least_ms, frame(windows) * frames * (shape.whole_factor if is_whole else 1.0))

    return cost


def read_table(directory: str | Path) -> Table:
    """Returns the table in a directory. Raises ConfigurationError naming the wrong fields."""
    file = Path(directory) / "config.json"
    known = ", ".join(list_built_in())
    try:
        return Table.model_validate_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"model.path {directory} holds no table for paced engines (config.json: {error.strerror}); "
            f"the built-in tables ({known}) are in {BUILT_IN}",
            field="model.path",
        ) from error
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'config.json'}: {item['msg']}"
            for item in error.errors(include_input=False)[:8]
        )
        raise ConfigurationError(
            f"{file} is not a table for paced engines: {wrong}; docs/load-tests.md describes the fields",
            field="model.path",
        ) from error


def list_built_in() -> list[str]:
    """Returns the names of the tables in this package."""
    return sorted(folder.name for folder in BUILT_IN.iterdir() if folder.is_dir())
