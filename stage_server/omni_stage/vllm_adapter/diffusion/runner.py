"""The runner of one-shot stages (diffusion, decoders): one step of the engine is one whole generation of a batch.

It does not derive from `GPUModelRunner`, which is vLLM's machinery for token-by-token decoding: a persistent batch of
token ids, block tables, attention metadata, logits, sampling, CUDA graphs for token counts. A diffusion request has
none of these, and a subclass would have to switch each of them off. In particular:

- No KV cache: `get_kv_cache_spec` is empty, so vLLM allocates none, and there are no block tables to keep.
- No KV transfer: there is no KV cache to transfer. A step without requests returns the empty output.
- No `_dummy_run` and no memory profiling: vLLM profiles to size the KV cache. A model captures CUDA graphs or compiles
  in its `warm_up`, if it has one. After that, every stage runs one request before it reports ready.
- No asynchronous scheduling (`output.py` says why): a step ends with its results on the host.
- No pipeline parallelism (refused). Under tensor parallelism every rank calls `generate`, and the first rank's results
  are used.
- One model interface, `generate`; a model without it is refused when it is loaded, not when it is first called.

A request fails alone: the model may return an exception in place of a result, and when a whole batch raises, its
requests are tried one by one. Only a broken device ends the engine.

Private interfaces of vLLM 0.32 used here, and why: `Worker`, `CPUWorker` and `UniProcExecutor`/`MultiprocExecutor`
(v1/worker, v1/executor) call the methods below on `model_runner`, with `SchedulerOutput` and `ModelRunnerOutput`. vLLM
states no interface for runners.

Turns a diffusion model's results into vLLM's model output: names and checks them, and copies them to the host.

The copies end before the step does, because a diffusion stage has no asynchronous scheduling. With it, vLLM 0.32 keeps
two steps in flight and launches the second before it reads the results of the first
(`EngineCore.step_with_batch_queue`). Each result would wait until a whole further generation is launched, only to hide
a copy of a few hundred kilobytes.

Private interface of vLLM 0.32: `ModelRunnerOutput` (v1/outputs.py).
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from vllm.model_executor.model_loader import get_model
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

from omni_stage.errors import ConfigurationError, EngineDeadStageError, ModelExecutionError, OmniStageError
from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.hooks import KeepsStreams, OneShotModel
from omni_stage.vllm_adapter.wiring.packing import OUTPUT_NAME, encode_output, pack_error

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec


logger = logging.getLogger(__name__)

Probe = Callable[[], None]
"""Raises an exception, of any class, if the device does not work."""


def probe_device(device: torch.device) -> None:
    """Wait for a CUDA device and have it add eight numbers. Raises RuntimeError if it cannot; returns on the CPU."""
    if device.type != "cuda":
        return
    torch.cuda.synchronize(device)
    if float(torch.ones(8, device=device).sum()) != 8.0:
        raise RuntimeError("the device computes a wrong sum of eight ones")


def judge_failure(error: Exception, probe: Probe) -> OmniStageError:
    """Returns the error that a request gets for a model's exception; raises if the device is broken.

    torch reports a lost CUDA context as AcceleratorError. cuBLAS and cuDNN report it as RuntimeError, as they do for a
    shape that they refuse. So the device is tested after every other failure, except our own errors and lack of memory.

    Our own errors say what is wrong with the request and hold no contents, so the client gets them. Of other errors,
    the client gets at most the class. The log gets the class and where the error was raised, but not the message, which
    may quote values.

    Raises EngineDeadStageError, or the AcceleratorError itself.
    """
    if isinstance(error, torch.AcceleratorError | EngineDeadStageError):
        # Every later call would fail too: the engine must end and start again.
        raise error
    if isinstance(error, OmniStageError):
        return error
    kind = type(error).__name__
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("the model failed on a request with %s, raised at:\n%s", kind, where)
    if isinstance(error, torch.OutOfMemoryError):
        return ModelExecutionError("the device has too little memory for this request; send a shorter one")
    try:
        probe()
    except Exception as broken:  # noqa: BLE001 - a broken device may raise anything
        logger.critical("the device does not work after a %s: %s", kind, type(broken).__name__)
        raise EngineDeadStageError(f"the device stopped working ({kind}); the stage server restarts") from error
    return ModelExecutionError(f"the model failed on this request ({kind}); the stage's log says where")


logger = logging.getLogger(__name__)


class GPUDiffusionModelRunner:
    """Runs a `OneShotModel` on any device. It has only the methods that vLLM's workers and executors call."""

    is_pooling_model = True
    supports_mm_inputs = False
    lora_config = None

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        """Raises ConfigurationError under pipeline parallelism and with asynchronous scheduling."""
        if vllm_config.parallel_config.pipeline_parallel_size > 1:
            raise ConfigurationError(
                "a diffusion stage cannot be split into pipeline ranks; set pipeline_parallel_size to 1",
                field="pipeline_parallel_size",
                limit=1,
            )
        if vllm_config.scheduler_config.async_scheduling:
            raise ConfigurationError(
                "a diffusion stage has no asynchronous scheduling; set async_scheduling to False",
                field="async_scheduling",
            )
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.device = device
        self.kv_caches: list[torch.Tensor] = []
        self.model_memory_usage = 0
        self.model: nn.Module | None = None
        self._waiting: dict[str, NewRequestData] = {}
        """Requests that were scheduled and not generated yet. A request's payload is released with its result."""

    # Methods that the worker calls

    def load_model(self, load_dummy_weights: bool = False) -> None:
        """Load the model through vLLM's loader. Raises ConfigurationError if it is not a `OneShotModel`."""
        if load_dummy_weights:
            self.vllm_config.load_config.load_format = "dummy"
        self.model = self._load_model()
        self.model_memory_usage = sum(tensor.nbytes for tensor in (*self.model.parameters(), *self.model.buffers()))

    def _load_model(self) -> nn.Module:
        model: nn.Module = get_model(vllm_config=self.vllm_config)
        if not isinstance(model, OneShotModel):
            raise ConfigurationError(
                f"model class {type(model).__name__} has no method generate(requests), so a diffusion stage cannot run "
                "it; implement omni_stage.vllm_adapter.hooks.OneShotModel or use an autoregressive stage",
                field="component",
            )
        return model

    def get_model(self) -> nn.Module:
        """Returns the loaded model. Raises ConfigurationError before load_model."""
        if self.model is None:
            raise ConfigurationError("the diffusion model is not loaded", field="component")
        return self.model

    def get_supported_tasks(self) -> tuple[str, ...]:
        """Returns the pooling tasks that the model's pooler names."""
        model: Any = self.get_model()
        return tuple(model.pooler.get_supported_tasks())

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """Returns an empty dict: no layer has a KV cache."""
        return {}

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any) -> None:
        """Allocate nothing. Raises ConfigurationError if the engine planned a KV cache for some layer after all."""
        if kv_cache_config.kv_cache_groups:
            raise ConfigurationError("a diffusion model's layers have no KV cache", field="component")

    def profile_run(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no KV cache to size."""

    def warming_up_model(self) -> None:
        """Let the model prepare what it can before the first request."""
        warm_up = getattr(self.get_model(), "warm_up", None)
        if warm_up is not None:
            warm_up()

    def end_stream(self, stream: str) -> None:
        """Let the model forget a stream that ended early, if the model keeps streams."""
        model = self.get_model()
        if isinstance(model, KeepsStreams):
            model.end_stream(stream)

    def update_max_model_len(self, max_model_len: int) -> None:
        """Do nothing: nothing here depends on the longest sequence."""

    def reset_mm_cache(self) -> None:
        """Do nothing: there is no cache of media."""

    def reset_encoder_cache(self) -> None:
        """Do nothing: there is no cache of encoder outputs."""

    def get_encoder_timing_stats(self) -> dict[str, dict[str, float | int]]:
        """Returns an empty dict: there is no encoder."""
        return {}

    def take_draft_token_ids(self) -> None:
        """Returns None: there is no speculative decoding."""

    def shutdown(self) -> None:
        """Free the model, so that another engine of this process gets its memory."""
        self.vllm_config.compilation_config.static_forward_context.clear()
        self._waiting.clear()
        self.model = None

    # A step

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput, intermediate_tensors: None = None) -> ModelRunnerOutput:
        """Generate for every request whose (placeholder) prompt ends in this step, as one batch.

        `pooler_output[i]` is a tensor, several tensors packed, or a packed error; None for a request that waits for
        the rest of its prompt, or whose payload could not be read.
        """
        for request_id in scheduler_output.finished_req_ids:
            self._waiting.pop(request_id, None)
        for new_request in scheduler_output.scheduled_new_reqs:
            self._waiting[new_request.req_id] = new_request
        request_ids = list(scheduler_output.num_scheduled_tokens)
        if not request_ids:
            return EMPTY_MODEL_RUNNER_OUTPUT
        complete = self._take_complete(scheduler_output)
        results = dict(zip(complete, self._generate(list(complete.values())), strict=True))
        return build_output(request_ids, results)

    def _take_complete(self, scheduler_output: SchedulerOutput) -> dict[str, AdditionalInformationPayload]:
        """Remove the requests whose prompt ends in this step from the waiting ones.

        Returns their payloads in batch order.
        """
        cached = scheduler_output.scheduled_cached_reqs
        starts = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        complete: dict[str, AdditionalInformationPayload] = {}
        for request_id, length in scheduler_output.num_scheduled_tokens.items():
            request = self._waiting.get(request_id)
            if request is None:
                continue
            start = starts.get(request_id, request.num_computed_tokens)
            if getattr(request, "payload_error", ""):
                # The scheduler ends this request after this step, and drops its output.
                del self._waiting[request_id]
            elif start + length >= len(request.prompt_token_ids or ()):
                payload = getattr(request, "additional_information", None)
                complete[request_id] = payload or AdditionalInformationPayload({})
                del self._waiting[request_id]
        return complete

    def _generate(self, payloads: list[AdditionalInformationPayload]) -> list[DiffusionResult | OmniStageError]:
        """Returns one result or error per payload. Raises an error only if the device is broken."""
        if not payloads:
            return []
        try:
            return self._generate_batch(payloads)
        except Exception as error:  # noqa: BLE001 - a model may raise anything; each request gets its own verdict
            failure = self._judge(error)
            if len(payloads) == 1:
                return [failure]
            logger.warning("a batch of %d failed, its requests are tried one by one: %s", len(payloads), failure)
        return [result for payload in payloads for result in self._generate([payload])]

    def _generate_batch(self, payloads: list[AdditionalInformationPayload]) -> list[DiffusionResult | OmniStageError]:
        model: Any = self.get_model()
        results = list(model.generate(payloads))
        if len(results) != len(payloads):
            raise ModelExecutionError(f"the model gave {len(results)} results for {len(payloads)} requests")
        return [self._judge(result) if isinstance(result, Exception) else check_result(result) for result in results]

    def _judge(self, error: Exception) -> OmniStageError:
        return judge_failure(error, lambda: probe_device(self.device))


DiffusionResult = torch.Tensor | list[torch.Tensor] | dict[str, torch.Tensor]
"""A model's result for one request: one tensor; a list of tensors, named output.0, output.1 ...; or a dict of them."""


def check_result(result: Any) -> DiffusionResult | OmniStageError:
    """Returns the result, or an error if it is not a valid result."""
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, dict) and result and all(isinstance(name, str) and name for name in result):
        tensors: Sequence[Any] = list(result.values())
    elif isinstance(result, list) and result:
        tensors = result
    else:
        tensors = [None]
    if all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return result
    return ModelExecutionError(
        f"the model's result is a {type(result).__name__}; it must be a tensor, or a list or dict of tensors"
    )


def name_tensors(result: DiffusionResult) -> dict[str, torch.Tensor]:
    """Returns the tensors of a checked result by name."""
    if isinstance(result, torch.Tensor):
        return {OUTPUT_NAME: result}
    if isinstance(result, dict):
        return result
    return {f"{OUTPUT_NAME}.{index}": tensor for index, tensor in enumerate(result)}


def build_output(request_ids: list[str], results: Mapping[str, DiffusionResult | OmniStageError]) -> ModelRunnerOutput:
    """Returns vLLM's output of a step, on the host, with None for a request without a result. Waits for the device."""
    named = {
        request_id: result if isinstance(result, OmniStageError) else name_tensors(result)
        for request_id, result in results.items()
    }
    tensors = [tensor for result in named.values() if isinstance(result, dict) for tensor in result.values()]
    on_host = iter(copy_to_host(tensors))
    copied = {
        request_id: {name: next(on_host) for name in result} if isinstance(result, dict) else result
        for request_id, result in named.items()
    }
    return ModelRunnerOutput(
        req_ids=request_ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
        pooler_output=[_encode(copied.get(request_id)) for request_id in request_ids],
    )


def copy_to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns contiguous copies of the tensors on the host, in order. Each dtype is one copy, and one wait for the
    device.

    A tensor that is on the host already is copied too: it may be a buffer that the model's next step overwrites.
    """
    places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        places.setdefault((tensor.device, tensor.dtype), []).append(index)
    found: dict[int, torch.Tensor] = {}
    for alike in places.values():
        flat = [tensors[index].detach().reshape(-1) for index in alike]
        joined = (flat[0] if len(flat) == 1 else torch.cat(flat)).to("cpu")
        parts = joined.split([len(part) for part in flat])
        # Clones, so that a result does not hold the memory of the others.
        found |= {index: part.view(tensors[index].shape).clone() for index, part in zip(alike, parts, strict=True)}
    return [found[index] for index in range(len(tensors))]


def _encode(tensors: dict[str, torch.Tensor] | OmniStageError | None) -> torch.Tensor | None:
    if tensors is None:
        return None
    if isinstance(tensors, OmniStageError):
        return pack_error(type(tensors).__name__, str(tensors))
    broken = [name for name, tensor in tensors.items() if not _is_finite(tensor)]
    if broken:
        error = ModelExecutionError(f"the model gave values that are not finite ({', '.join(broken)})")
        return pack_error(type(error).__name__, str(error))
    try:
        return encode_output(tensors, OUTPUT_NAME)
    except OmniStageError as error:
        # Packing refused the tensors, for example their dtype. That is the model's fault; only this request fails.
        return pack_error(ModelExecutionError.__name__, str(error))


def _is_finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
