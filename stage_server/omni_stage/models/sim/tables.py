"""The tables: what a step of each stage costs on one kind of GPU, and the shapes of what the stages send.

A table takes a checkpoint's place: a directory with config.json, which spec.model.uri names. Those in `tables/` are
based on published figures and name them; docs/load-tests.md describes how to write one for your own GPU.
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
MODEL_TYPE: Final = "omnipipeline_sim"

Curve = Annotated[dict[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0)]], Field(min_length=1)]
"""Milliseconds by a count. Between two points the curve is linear; past the last it continues the last segment."""


class TextShape(ConfigModel):
    """The thinker."""

    step_ms: Curve
    """Milliseconds of a step, by the number of its requests."""
    prompt_token_ms: Annotated[float, Field(ge=0)]
    """Additional milliseconds for each prompt token that the step computes."""
    kv_token_bytes: Annotated[int, Field(ge=1)]
    """Bytes of KV cache for one token."""
    kv_memory_mib: Annotated[int, Field(ge=1)]
    """MiB of KV cache if engineArgs does not set it."""
    row_values: Annotated[int, Field(ge=0, le=1 << 16)]
    """bfloat16 values in the row that the talker reads for each position. 0 if text is sent as ids only."""
    reply_tokens: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
    """Shortest and longest reply for requests that set no length; the seed selects one in between."""

    @model_validator(mode="after")
    def _check_reply(self) -> TextShape:
        if self.reply_tokens[0] > self.reply_tokens[1]:
            raise ValueError("replyTokens must be the shortest and then the longest reply")
        return self


class CodecShape(ConfigModel):
    """The talker: one step is one frame of audio, however many codes a frame has."""

    step_ms: Curve
    """Milliseconds of a step, by the number of its requests, including all codes of their frames."""
    prompt_token_ms: Annotated[float, Field(ge=0)]
    """Additional milliseconds for each prompt row that the step computes."""
    kv_token_bytes: Annotated[int, Field(ge=1)]
    """Bytes of KV cache for one position."""
    kv_memory_mib: Annotated[int, Field(ge=1)]
    """MiB of KV cache if engineArgs does not set it."""
    frame_codes: Annotated[int, Field(ge=1, le=64)]
    """Codes of a frame."""
    frames_per_second: Annotated[float, Field(gt=0)]
    """Frames per second of speech."""
    seconds_per_text_token: Annotated[float, Field(gt=0)]
    """Seconds of speech for a token of text."""


class SoundShape(ConfigModel):
    """The decoder: a step is a window of frames for each request in it."""

    frame_ms: Curve
    """Milliseconds per frame of the longest window, by the number of requests in the step."""
    least_ms: Annotated[float, Field(ge=0)] = 0.0
    """Shortest time of a step: the cost of kernel launches."""
    whole_factor: Annotated[float, Field(gt=0)] = 1.0
    """Factor on frameMs for an utterance that is made as a whole."""
    max_batch: Annotated[int, Field(ge=1)] = 64
    """Most windows in a step."""
    first_frames: Annotated[int, Field(ge=1)]
    """New frames of the first window."""
    next_frames: Annotated[int, Field(ge=1)]
    """New frames of every later window."""
    back_frames: Annotated[int, Field(ge=0)] = 0
    """Frames before its new ones that a window computes again."""
    ahead_frames: Annotated[int, Field(ge=0)] = 0
    """Frames after its new ones that a window needs."""


class Table(ConfigModel):
    """One model on one kind of GPU, a GPU for each stage."""

    model_type: Literal["omnipipeline_sim"]
    """Identifies the file as a table."""
    title: str
    """The model and the GPU."""
    sources: Annotated[dict[str, str], Field(min_length=1)]
    """Where each figure is from: field -> source, with the derivation of figures that were not measured."""
    thinker: TextShape
    talker: CodecShape
    decoder: SoundShape

    @property
    def samples_per_frame(self) -> int:
        """Samples of a frame at 24 kHz."""
        return round(24_000 / self.talker.frames_per_second)


def interpolate(curve: Mapping[int, float]) -> Callable[[int], float]:
    """Returns the function of a curve: milliseconds at a count."""
    counts = sorted(curve)
    values = [curve[count] for count in counts]

    def at(count: int) -> float:
        if count <= counts[0] or len(counts) == 1:
            return values[0]
        right = min(bisect_left(counts, count), len(counts) - 1)
        share = (count - counts[right - 1]) / (counts[right] - counts[right - 1])
        return values[right - 1] + (values[right] - values[right - 1]) * share

    return at


def token_cost(shape: TextShape | CodecShape) -> Callable[[int, int], float]:
    """Returns milliseconds of an autoregressive step by its requests and the prompt tokens in it."""
    step = interpolate(shape.step_ms)
    return lambda requests, prompt_tokens: step(requests) + prompt_tokens * shape.prompt_token_ms


def sound_cost(shape: SoundShape) -> Callable[[int, int, bool], float]:
    """Returns milliseconds of a decoder's step by its windows, the longest one's frames, and whether that is whole."""
    frame = interpolate(shape.frame_ms)

    def cost(windows: int, frames: int, is_whole: bool) -> float:
        return max(shape.least_ms, frame(windows) * frames * (shape.whole_factor if is_whole else 1.0))

    return cost


def read_table(directory: str | Path) -> Table:
    """Returns the table of a directory. Raises ConfigurationError naming every wrong field."""
    file = Path(directory) / "config.json"
    known = ", ".join(list_built_in())
    try:
        return Table.model_validate_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"model.path {directory} holds no table for paced engines (config.json: {error.strerror}); "
            f"the built-in ones ({known}) are in {BUILT_IN}",
            field="model.path",
        ) from error
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'config.json'}: {item['msg']}"
            for item in error.errors(include_input=False)[:8]
        )
        raise ConfigurationError(
            f"{file} is no table for paced engines: {wrong}; docs/load-tests.md describes the fields",
            field="model.path",
        ) from error


def list_built_in() -> list[str]:
    """Returns the names of the tables that the package brings."""
    return sorted(folder.name for folder in BUILT_IN.iterdir() if folder.is_dir())
