"""Diffusion outputs of a real engine: every type that a model may return, and failures that end only their request."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from vllm import PoolingParams
from vllm.engine.arg_utils import EngineArgs

from omni_stage.errors import ConfigurationError, InvalidTensorError, ModelExecutionError, OmniStageError
from omni_stage.exchange import FinishReason
from omni_stage.payloads import OMNI_PAYLOAD_KEY, AdditionalInformationPayload
from omni_stage.vllm_adapter.core.inproc import InprocEngineCore
from omni_stage.vllm_adapter.wiring.names import scheduler_cls, worker_cls
from support.engines.toy_models import register_toy_models

pytestmark = pytest.mark.engine


def write_checkpoint(directory: Path, architecture: str) -> Path:
    config = {
        "architectures": [architecture],
        "model_type": "qwen2",
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 0,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    save_file({"weight": torch.tensor([2.0])}, directory / "model.safetensors")
    return directory


def start(directory: Path) -> InprocEngineCore:
    core = InprocEngineCore(
        lambda: EngineArgs(
            model=str(directory),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=16,
            max_num_seqs=8,
            max_num_batched_tokens=16,
            enforce_eager=True,
            kv_cache_memory_bytes=1 << 20,
            runner="pooling",
            enable_prefix_caching=False,
            async_scheduling=False,
            worker_cls=worker_cls("diffusion", "cpu"),
            scheduler_cls=scheduler_cls("diffusion", False),
        ).create_engine_config()
    )
    asyncio.run(core.start())
    return core


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InprocEngineCore]:
    register_toy_models()
    core = start(write_checkpoint(tmp_path_factory.mktemp("diffusion"), "ToyDiffusion"))
    yield core
    asyncio.run(core.shutdown())


def engine_of(core: InprocEngineCore) -> Any:
    return core.llm.engine_core.engine_core


def runner_of(core: InprocEngineCore) -> Any:
    return engine_of(core).model_executor.driver_worker.worker.model_runner


def run(core: InprocEngineCore, shapes: dict[str, str]) -> dict[str, Any]:
    """Returns the tensors or the error of each request, by name.

    `shapes` maps a request's name to what the toy model returns or raises for it. Every request sends x = [1, 2, 3].
    """

    async def one(name: str, shape: str) -> dict[str, torch.Tensor]:
        payload = AdditionalInformationPayload.from_mapping({"x": torch.tensor([1.0, 2.0, 3.0]), "shape": [shape]})
        params = PoolingParams(extra_kwargs={OMNI_PAYLOAD_KEY: payload.to_bytes()})
        outputs = [output async for output in core.stream(name, {"prompt_token_ids": [0]}, params)]
        assert [output.finish_reason for output in outputs] == [FinishReason.DIFFUSION_DONE]
        return outputs[0].tensors

    async def all_of_them() -> list[Any]:
        # The engine's thread waits until all requests have been submitted, so that they form one batch.
        gate = threading.Event()
        core._thread.submit(gate.wait)
        tasks = [asyncio.create_task(one(name, shape)) for name, shape in shapes.items()]
        await asyncio.sleep(0)  # each task runs until it has submitted its request
        gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return dict(zip(shapes, asyncio.run(all_of_them()), strict=True))


def test_every_form_of_result_arrives_by_name(core: InprocEngineCore) -> None:
    results = run(core, {shape: shape for shape in ("tensor", "list", "dict", "bytes")})
    doubled = torch.tensor([2.0, 4.0, 6.0])
    expected = {
        "tensor": {"output": doubled},
        "list": {"output.0": doubled, "output.1": doubled + 1},
        "dict": {"wave": doubled, "ids": torch.arange(3)},
        "bytes": {"output": doubled.to(torch.uint8)},
    }
    for shape, tensors in expected.items():
        assert list(results[shape]) == list(tensors), shape
        assert all(torch.equal(results[shape][name], tensor) for name, tensor in tensors.items()), shape


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        pytest.param("error", InvalidTensorError, "does not like it", id="our own error keeps class and message"),
        pytest.param("foreign error", ModelExecutionError, "ValueError", id="another error tells its kind only"),
        pytest.param("raise", ModelExecutionError, "RuntimeError", id="the whole batch raises"),
        pytest.param("nothing", ModelExecutionError, "NoneType", id="no tensor"),
        pytest.param("complex", ModelExecutionError, "complex64", id="a dtype that is not carried"),
    ],
)
def test_a_failure_stays_with_its_request(
    core: InprocEngineCore, shape: str, error: type[OmniStageError], message: str
) -> None:
    results = run(core, {"before": "tensor", "bad": shape, "after": "list"})
    assert type(results["bad"]) is error
    assert message in str(results["bad"])
    assert "2.0" not in str(results["bad"])
    assert torch.equal(results["before"]["output"], torch.tensor([2.0, 4.0, 6.0]))
    assert len(results["after"]) == 2


def test_a_raising_batch_is_tried_one_by_one_and_a_good_one_runs_whole(core: InprocEngineCore) -> None:
    model = runner_of(core).get_model()
    model.batches.clear()
    run(core, {"a": "raise", "b": "tensor", "c": "tensor"})
    assert model.batches == [3, 1, 1, 1]
    model.batches.clear()
    run(core, {"a": "error", "b": "tensor", "c": "list"})
    assert model.batches == [3]
    assert not runner_of(core)._waiting


def test_no_kv_cache_is_allocated_and_the_task_is_the_poolers(core: InprocEngineCore) -> None:
    assert engine_of(core).scheduler.kv_cache_config.kv_cache_groups == []
    assert runner_of(core).get_kv_cache_spec() == {}
    assert runner_of(core).kv_caches == []
    assert runner_of(core).get_supported_tasks() == ("plugin",)


def test_a_model_without_generate_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    register_toy_models()
    with pytest.raises(ConfigurationError, match="ToyWithoutGenerate has no method generate"):
        start(write_checkpoint(tmp_path, "ToyWithoutGenerate"))
