"""Builders of real vLLM schedulers and requests, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from omni_stage.payloads import OMNI_PAYLOAD_KEY, AdditionalInformationPayload
from support.models.bare_config import write_bare_config

BLOCK_SIZE = 16
EOS = 1


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a checkpoint folder that holds only a configuration, because schedulers read no weights."""
    return write_bare_config(tmp_path_factory.mktemp("scheduler_model"), max_position_embeddings=8192)


@pytest.fixture
def make_scheduler(model_dir: Path) -> Callable[..., Any]:
    """Returns a function that builds a scheduler of the given class with a real configuration."""

    def build(
        scheduler_class: type,
        *,
        kv_blocks: int = 64,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 128,
        max_model_len: int = 128,
        enable_chunked_prefill: bool = True,
        runner: str = "generate",
        policy: str = "priority",
        additional_config: dict[str, Any] | None = None,
        log_stats: bool = False,
        enable_prefix_caching: bool = False,
    ) -> Any:
        model_config = ModelConfig(
            model=str(model_dir),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=max_model_len,
            runner=runner,
            seed=0,
        )
        cache_config = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=enable_prefix_caching)
        # Without KV cache groups vLLM still counts one block, the null block.
        cache_config.num_gpu_blocks = kv_blocks or 1
        config = VllmConfig(
            model_config=model_config,
            cache_config=cache_config,
            parallel_config=ParallelConfig(),
            scheduler_config=SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
                is_encoder_decoder=False,
                enable_chunked_prefill=enable_chunked_prefill,
                policy=policy,
            ),
            additional_config=additional_config or {},
        )
        config.scheduler_config.enable_chunked_prefill = enable_chunked_prefill
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=32, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)] if kv_blocks else []
        return scheduler_class(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks=kv_blocks or 1, kv_cache_tensors=[], kv_cache_groups=groups),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_SIZE,
            log_stats=log_stats,
        )

    return build


@pytest.fixture(scope="session")
def payload() -> Callable[..., AdditionalInformationPayload]:
    """Returns a function that builds a payload with one tensor of `rows` rows and one list."""

    def build(rows: int = 3, fill: float = 1.0) -> AdditionalInformationPayload:
        return AdditionalInformationPayload.from_mapping({"codes": torch.full((rows, 4), fill), "steps": [4]})

    return build


@pytest.fixture(scope="session")
def ar_request() -> Callable[..., Request]:
    """Returns a function that builds an autoregressive request."""

    def build(name: str, tokens: int = 5, raw: object = None, max_tokens: int = 4, client: int = 0) -> Request:
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        if raw is not None:
            params.extra_args = {OMNI_PAYLOAD_KEY: raw}
        return Request(name, [3] * tokens, params, None, client_index=client)

    return build


@pytest.fixture(scope="session")
def diffusion_request(payload: Callable[..., AdditionalInformationPayload]) -> Callable[..., Request]:
    """Returns a function that builds a diffusion request."""

    def build(name: str, tokens: int = 1, raw: object = None, rows: int = 3, client: int = 0) -> Request:
        raw = payload(rows).to_bytes() if raw is None else raw
        params = PoolingParams(extra_kwargs={OMNI_PAYLOAD_KEY: raw})
        return Request(name, [0] * tokens, None, params, client_index=client)

    return build


@pytest.fixture(scope="session")
def run_step() -> Callable[..., ModelRunnerOutput]:
    """Returns a function that answers a step as a worker would.

    A request that samples gets a token, a pooling request gets a tensor.
    """

    def answer(
        scheduler: Any, output: SchedulerOutput, pooled: dict[str, Any] | None = None, token: int = 7
    ) -> ModelRunnerOutput:
        ids = list(output.num_scheduled_tokens)
        tokens: list[list[int]] = []
        pooler: list[Any] = []
        for request_id in ids:
            request = scheduler.requests.get(request_id)
            is_pooling = request is None or request.pooling_params is not None
            prefilled = request is not None and request.num_computed_tokens >= request.num_prompt_tokens
            tokens.append([] if is_pooling or not prefilled else [token])
            default = torch.ones(4) if is_pooling else None
            pooler.append(default if pooled is None else pooled.get(request_id, default))
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=tokens,
            pooler_output=pooler,
        )

    return answer


def collect(outputs: dict[int, Any]) -> dict[str, Any]:
    """Returns the outputs of a step for all clients, by request id."""
    return {output.request_id: output for client in outputs.values() for output in client.outputs}


@pytest.fixture(scope="session")
def step(run_step: Callable[..., ModelRunnerOutput]) -> Callable[..., tuple[SchedulerOutput, dict[str, Any]]]:
    """Returns a function that runs one step: it schedules, answers, and updates the scheduler.

    The function returns the scheduler's output, and the outputs by request id.
    """

    def run(scheduler: Any, pooled: dict[str, Any] | None = None) -> tuple[SchedulerOutput, dict[str, Any]]:
        output = scheduler.schedule()
        return output, collect(scheduler.update_from_output(output, run_step(scheduler, output, pooled)))

    return run


@pytest.fixture(scope="session")
def new_ids() -> Callable[[SchedulerOutput], Sequence[str]]:
    """Returns a function that lists the ids of a step's new requests, in order."""
    return lambda output: [data.req_id for data in output.scheduled_new_reqs]
