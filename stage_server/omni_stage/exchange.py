"""What the service, the engines and the models pass to one another: arrays, outputs of a step, forms of reply.

Arrays are CPU tensors: numpy arrays, or torch tensors where an engine returns those. The stage server itself does not
need torch, so it can serve an engine that does not use it. torch is imported only where a torch tensor is requested or
was received. numpy has no bfloat16, so its arrays hold the bits as uint16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from omni_proto.brief import Brief
from omni_proto.tensors import ReceivedTensor, TensorSpec, dtype_info

if TYPE_CHECKING:
    import torch

_TORCH_GRAIN = 32_768
"""From this number of elements on, torch copies with several threads, and the event loop would have to wait for
them."""

Array: TypeAlias = "npt.NDArray[Any] | torch.Tensor"
"""[rows, ...] on the CPU."""


def fits(array: Array, spec: TensorSpec) -> bool:
    """Returns whether an array has the element type and the row shape of its schema."""
    if isinstance(array, np.ndarray):
        dtype, wanted = array.dtype.name, np.dtype(dtype_info(spec.dtype).numpy_name).name
    else:
        dtype, wanted = str(array.dtype).removeprefix("torch."), spec.dtype
    return bool(dtype == wanted and array.ndim > 0 and tuple(array.shape[1:]) == spec.row_shape)


def describe_array(array: Array) -> str:
    """Returns element type and shape, for messages."""
    return f"{str(array.dtype).removeprefix('torch.')}{list(array.shape)}"


def join(arrays: Sequence[Array]) -> Array:
    """Returns one array with the rows of all arrays. A single array is not copied.

    The arrays must all be numpy arrays or all torch tensors.
    """
    first = arrays[0]
    if len(arrays) == 1:
        return first
    if isinstance(first, np.ndarray):
        joined: npt.NDArray[Any] = np.concatenate(cast("Sequence[npt.NDArray[Any]]", arrays))
        return joined
    import torch

    return torch.cat(cast("list[torch.Tensor]", list(arrays)))


def view_bytes(array: Array) -> memoryview:
    """Returns the array's bytes, contiguous and little-endian. An array that already has this form is not copied."""
    little = _to_little(array)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8).data


def join_bytes(arrays: Sequence[Array]) -> memoryview:
    """Returns the concatenated bytes of all arrays, as `view_bytes` does for a single one. Copies several arrays once.

    The arrays must all be numpy arrays or all torch tensors, of the same row shape.
    """
    if len(arrays) == 1 or sum(math.prod(array.shape) for array in arrays) < _TORCH_GRAIN:
        return view_bytes(join(arrays))
    return view_bytes(np.concatenate([_to_little(array) for array in arrays]))


def _to_little(array: Array) -> npt.NDArray[Any]:
    """Returns a little-endian numpy array of the same elements, bfloat16 as integers; a view where possible."""
    if isinstance(array, np.ndarray):
        return array.astype(array.dtype.newbyteorder("<"), copy=False)
    import torch

    # A call into torch takes a microsecond, and this runs for every message: make only the calls that are needed.
    if array.requires_grad or array.device.type != "cpu":
        array = array.detach().cpu()
    if array.dtype is torch.bfloat16:
        array = array.view(torch.int16)
    whole: npt.NDArray[Any] = array.numpy()
    return whole


def to_samples(audio: Array) -> npt.NDArray[np.float32]:
    """Returns audio as float32 [samples], without a copy if it already has that form."""
    if isinstance(audio, np.ndarray):
        return np.ascontiguousarray(audio, dtype=np.float32).reshape(-1)
    import torch

    samples: npt.NDArray[np.float32] = audio.detach().to(device="cpu", dtype=torch.float32).reshape(-1).numpy()
    return np.ascontiguousarray(samples)


def to_numpy(received: Mapping[str, ReceivedTensor]) -> dict[str, Array]:
    """Returns received tensors as numpy arrays [rows, *row_shape] that share the received buffers."""
    return {name: item.to_numpy() for name, item in received.items()}


def to_torch(received: Mapping[str, ReceivedTensor]) -> dict[str, torch.Tensor]:
    """Returns received tensors as torch tensors [rows, *row_shape] that share the received buffers."""
    return {name: _to_torch(item) for name, item in received.items()}


def _to_torch(item: ReceivedTensor) -> torch.Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, item.spec.dtype)
    if item.rows == 0:
        return torch.empty(item.shape, dtype=dtype)
    return torch.frombuffer(item.data, dtype=dtype).reshape(item.shape)


class FinishReason(Enum):
    """Why a stage stopped. Each value has a counterpart in omni_proto.stage.v1.FinishReason."""

    STOP = "stop"
    LENGTH = "length"
    DIFFUSION_DONE = "diffusion_done"
    EMPTY_INPUT = "empty_input"


@dataclass(slots=True, repr=False)
class EngineStep(Brief):
    """One output of the engine for one request, before the component processes it. It holds only what is new since the
    request's previous output."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    prompt_token_ids: list[int] | None = None
    """The prompt's token ids as the engine received them; set in the first step."""
    cached_tokens: int = 0
    """How many of the prompt's tokens the engine had from earlier requests; set in the first step."""
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The tensors that the runner captured, on the CPU. An autoregressive model has either "rows" [n, H], with one row
    for each newly computed position (prompt and output), or the tensors that the model names. A model with M-RoPE also
    has, in the first step only, "mrope_positions" [P, 3] int64 for the P tokens of the prompt, and "mrope_delta" [1]
    int64. A diffusion model has the outputs that it names."""
    finish_reason: FinishReason | None = None
    """How the request ended; None if it continues. If the request's input arrives in parts, the engine core sets this
    to how a part ended, and to None while the part continues."""
    stop_reason: str = ""
    """The id of the stop token, the stop string, or the scheduler's reason that ended the request; else empty."""
    scheduled_ns: int | None = None
    """time.monotonic_ns() when the request was first scheduled, if known."""
    reused_rows: int = 0
    """How many rows of `tensors` come from earlier requests with the same prefix."""
    reused_bytes: int = 0
    """Bytes of these rows."""


@dataclass(frozen=True, slots=True)
class GivenReply:
    """A reply that the client provides, so that the model samples none. Exactly one field is set."""

    text: str | None = None
    token_ids: Sequence[int] | None = None
    """Ids of the stage's tokenizer. If the last one is an end-of-text token, it is dropped."""


@dataclass(frozen=True, slots=True)
class ReplyTokens:
    """A given reply, tokenized."""

    token_ids: tuple[int, ...]
    """At least one id, without the end-of-text token."""
    text: str
    """The reply as text, which the client receives."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of its arguments."""
    strict: bool = False
    """Whether the arguments must fit the schema."""


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A call that the assistant made earlier in a conversation."""

    id: str
    name: str
    arguments: Mapping[str, Any]


class ToolMode(Enum):
    """Whether the model calls tools."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request."""

    tools: tuple[OfferedTool, ...]
    mode: ToolMode = ToolMode.AUTO
    function: str = ""
    """Name of the one function that must be called; if empty, the mode decides."""

    def as_openai(self) -> list[dict[str, Any]]:
        """Returns the tools in OpenAI's form, which chat templates read."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or None,
                    "parameters": dict(tool.parameters),
                    **({"strict": True} if tool.strict else {}),
                },
            }
            for tool in self.tools
        ]


@dataclass(frozen=True, slots=True)
class StructuredText:
    """The form that the text must have. Exactly one field is set."""

    json_schema: str | None = None
    """JSON Schema, as JSON text."""
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    """EBNF."""

    @property
    def kind(self) -> str:
        """Name of the field that is set."""
        names = ("json_schema", "regex", "choice", "grammar")
        return next((name for name in names if getattr(self, name) is not None), "json_object")


@dataclass(frozen=True, slots=True)
class ParsedText:
    """The result of parsing a piece of text."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallPiece, ...] = ()


class TextParse(Protocol):
    """The parser of one request's text."""

    def feed(
        self, text: str, token_ids: Sequence[int], prompt_token_ids: Sequence[int] | None, *, finished: bool
    ) -> ParsedText:
        """Returns the parse of the next piece of text. Raises OmniStageError.

        `prompt_token_ids` is set for the first piece.
        """
        ...


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """A piece of a tool call that the model writes."""

    index: int
    """Number of the call in the answer, from 0."""
    id: str = ""
    """Only in the first piece of a call."""
    name: str = ""
    """Only in the first piece of a call."""
    arguments: str = ""
    """The next part of the arguments' JSON text."""
