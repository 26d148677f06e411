"""StageEngine: the interface of an engine that the stage server, OmniLLM and the tests use."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from omni_proto.tensors import ReceivedTensor, TensorSpec
from omni_stage.exchange import Array
from omni_stage.models.component import ServedComponent, StageRequest, StageStep


class StageEngine(Protocol):
    """An engine with its component. It serves many requests concurrently, in shared batches."""

    @property
    def component(self) -> ServedComponent:
        """The component that the engine runs."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and output together."""
        ...

    @property
    def prompt_embeds(self) -> TensorSpec | None:
        """Form of the prompt embeddings that the stage takes: rows of [hidden size] in the engine's dtype. None if the
        stage takes no embeddings."""
        ...

    @property
    def is_dead(self) -> bool:
        """Whether the engine can no longer serve; once true, it stays true."""
        ...

    @property
    def compiled_check_failed(self) -> bool:
        """Whether compiled code or CUDA graphs gave wrong results, so that the stage serves with eager code."""
        ...

    @property
    def kernels_compiled(self) -> int:
        """Number of kernels that the engine had to compile since it was ready. May be a few seconds old."""
        ...

    @property
    def reused_rows(self) -> tuple[int, int]:
        """How many published rows came from earlier requests with the same prefix, and their bytes. It only grows."""
        ...

    @property
    def unfinished_requests(self) -> int:
        """Number of requests that the engine has work for. A request that waits for more streamed input, or whose
        caller still handles a step, does not count."""
        ...

    @property
    def waiting_requests(self) -> int:
        """Number of requests with streamed input that wait until they fit into the engine. The engine's scheduler does
        not count them. May be read in any thread."""
        ...

    @property
    def last_step_monotonic(self) -> float:
        """time.monotonic() of the last output of any request, or of the first submission after the engine was idle."""
        ...

    def open_tensors(self, received: Mapping[str, ReceivedTensor]) -> Mapping[str, Array]:
        """Returns received tensors as the component reads them: as torch tensors, or as numpy arrays if the engine
        needs no torch."""
        ...

    async def start(self) -> None:
        """Load the model and run one warm-up request. Raises ConfigurationError, EngineDeadStageError."""
        ...

    def generate(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """Yields the steps of one request. Closing the generator aborts the request in the engine.

        Raises OmniStageError: InvalidRequestError and its subclasses, RequestTooLargeError or PrepareTimeoutError
        before the engine gets the request; EngineDeadStageError, QueueTimeoutError or ModelExecutionError while the
        engine runs it.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request. Unknown ids are ignored."""
        ...

    async def shutdown(self) -> None:
        """End the engine and its processes. Idempotent."""
        ...
