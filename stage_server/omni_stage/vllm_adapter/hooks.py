"""What a vLLM model class may do around a step of our runners. Each hook is a protocol; a model may implement several.

    autoregressive    SupportsInputRows     its input is more than token ids: one row is added at every position
                      PublishesPositions    it chooses what it publishes for a position (by default: the hidden state)
                      ActsAfterSampling     it computes more from the token just sampled: a codec's further codes
                      FollowsRequests       it keeps state of each request from step to step
                      HasPlaceholders       some token ids have no embedding
    one shot          OneShotModel          a whole output from a whole input: diffusion, codec decoders, vocoders
                      KeepsStreams          it keeps state of a stream from one part to the next

A one-shot model streams when its component cuts its input into parts (InputPart): each part is a request.

The runners call `publish_positions`, `after_sampling` and `generate` under inference mode, once for all requests of a
step. An autoregressive model's hooks must not wait for the device (no `.item()`, `.cpu()`, `nonzero`), because that
would delay the launch of the next step. The tensors that they return must own their memory, because the next step
overwrites their inputs. This module imports torch for its types only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from omni_stage.payloads import AdditionalInformationPayload


@runtime_checkable
class SupportsInputRows(Protocol):
    """A model that takes input rows.

    Its forward reads `buffer[:num_tokens]`, where num_tokens is the length of its input ids; rows of padding tokens and
    of dummy runs are zero. If an inner module is compiled with piecewise CUDA graphs, what the forward computes from
    the rows must reach that module through a tensor with a fixed address too: a graph replays addresses.
    """

    input_row_size: int
    """Number of values in a row, D."""

    def bind_input_rows(self, buffer: torch.Tensor) -> None:
        """Take the buffer [max_num_tokens, D] (the engine's dtype, the model's device); called once, after loading."""


@dataclass(frozen=True, slots=True)
class ScheduledSpan:
    """The positions [start, start + length) of one request, at rows [offset, offset + length) of the step's batch."""

    request_id: str
    start: int
    length: int
    offset: int


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of several requests that a step computed, in the order of the rows to publish."""

    input_ids: torch.Tensor
    """[n], the token at each position; on the device."""
    hidden_states: torch.Tensor
    """[n, H], what `compute_logits` gets; on the device."""
    take: Callable[[torch.Tensor], torch.Tensor]
    """Copies these positions' rows [n, ...] out of a tensor [tokens of the step, ...] that the model's forward filled,
    such as the hidden states of some layer."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Positions [start, start + length) of one request that a step computed."""

    start: int
    length: int
    prompt_length: int
    media: Sequence[tuple[int, int]] = ()
    """Ranges [begin, end) of the prompt's positions that stand for media, ascending."""


@runtime_checkable
class PublishesPositions(Protocol):
    """A model that chooses what a downstream stage reads for each position.

    It may also have `select_positions(stretch)`, which returns the ranges [begin, end), relative to `stretch.start`, of
    the positions to publish. The runner calls it on the host. Without `select_positions`, all positions are published.

    With a cache of rows (`rows_cache_bytes`), rows and choice may depend only on the tokens and media up to a position.
    """

    def publish_positions(self, positions: Positions) -> Mapping[str, torch.Tensor]:
        """Returns tensors by name, each [n, ...] with row i for position i."""
        ...


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The tokens that a step sampled, without requests that are still in their prefill."""

    request_ids: Sequence[str]
    token_ids: torch.Tensor
    """[n], on the device; not known to the host yet."""
    hidden_states: torch.Tensor
    """[n, H], of the position that each token was sampled from; on the device."""


@runtime_checkable
class ActsAfterSampling(Protocol):
    """A model that acts as soon as tokens are sampled, before the next step is launched, such as a code predictor."""

    def after_sampling(self, sampled: SampledTokens) -> Mapping[str, torch.Tensor]:
        """Returns tensors by name, each [n, ...] with row i for token i, which the stage publishes; may be empty."""
        ...


@runtime_checkable
class FollowsRequests(Protocol):
    """A model that keeps state of each request, such as a codec's codes, and makes later positions' input from it.

    It must keep this state by position, because a preempted request computes its positions again.
    """

    def begin_request(self, request_id: str, payload: AdditionalInformationPayload | None) -> None:
        """Called before a request, or a later part of its input, is computed for the first time."""
        ...

    def begin_step(self, spans: Sequence[ScheduledSpan]) -> None:
        """Called before the forward of every step, with the spans that it computes; with none before a dummy run."""
        ...

    def end_request(self, request_id: str) -> None:
        """Called when a request has ended. Unknown ids must be ignored."""
        ...


@runtime_checkable
class HasPlaceholders(Protocol):
    """A model with placeholder token ids, which may have no embedding."""

    placeholder_token_ids: Sequence[int]


OneShotResult = Any
"""A model's result for one request: a tensor; a list of tensors, named output.0, output.1 ...; or a dict of them."""


@runtime_checkable
class OneShotModel(Protocol):
    """A model whose step is one whole generation of a batch.

    It must also have what vLLM requires of a model without attention: IsAttentionFree, `is_pooling_model = True`, a
    `pooler` (IdentityPooler), `load_weights`. It may have `warm_up()`, which is called once, after the weights are
    loaded.
    """

    def generate(self, requests: Sequence[AdditionalInformationPayload]) -> Sequence[OneShotResult | Exception]:
        """Returns one result per request, in order, on any device.

        Values that are not finite fail their request: with NaN, a model can mark an invalid result without waiting for
        the device. An exception in place of a result fails that request only. If `generate` raises, the batch is tried
        again request by request, so `generate` must not leave state behind when it raises.
        """
        ...


@runtime_checkable
class KeepsStreams(Protocol):
    """A one-shot model that keeps state of a stream from one part to the next. Each part is a request.

    The payload of a request names its stream, by the request id that the component was given. The model frees the
    state with the part that is marked as the last.
    """

    def end_stream(self, stream: str) -> None:
        """Free the state of a stream that ended before its last part. Called between steps. Must ignore unknown ids."""
        ...
