"""StageEngine: what the stage server, OmniLLM and the tests ask of an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from omni_proto.tensors import ReceivedTensor, TensorSpec
from omni_stage.arrays import Array
from omni_stage.models.component import ServedComponent, StageRequest, StageStep


class StageEngine(Protocol):
    """An engine with its component, serving many requests at once in shared batches."""

    @property
    def component(self) -> ServedComponent:
        """What it runs."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and output together."""
        ...

    @property
    def max_streamed(self) -> int | None:
        """Requests with streamed input that run at once; more wait. None: no bound of their own."""
        ...

    @property
    def prompt_embeds(self) -> TensorSpec | None:
        """What a prompt of embeddings is, [hidden size] a row in the engine's dtype; None where they are refused."""
        ...

    @property
    def is_dead(self) -> bool:
        """Whether the engine can no longer serve; set for good."""
        ...

    @property
    def compiled_check_failed(self) -> bool:
        """Whether compiled code or CUDA graphs answered otherwise than the model's own code, which serves instead."""
        ...

    @property
    def unfinished_requests(self) -> int:
        """Requests that the engine has work for: submitted, not ended, and not waiting for more streamed input."""
        ...

    @property
    def last_step_monotonic(self) -> float:
        """time.monotonic() of the last output of any request, or of the submission that ended idleness."""
        ...

    def open_tensors(self, received: Mapping[str, ReceivedTensor]) -> Mapping[str, Array]:
        """Received tensors as the component reads them: torch's, or numpy's where the engine needs no torch."""
        ...

    async def start(self) -> None:
        """Load the model and run one warm-up request. Raises ConfigurationError, EngineDeadStageError."""
        ...

    def generate(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """Run one request. Closing the generator aborts it in the engine.

        Raises OmniStageError: InvalidRequestError and its kin before the engine sees the request;
        EngineDeadStageError, QueueTimeoutError, ModelExecutionError while it runs.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request. Unknown ids are ignored."""
        ...

    async def shutdown(self) -> None:
        """End the engine and its processes. Idempotent."""
        ...
