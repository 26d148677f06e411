"""Our schedulers in real vLLM engines: a bad request fails with a reason, and the engine keeps serving."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_stage.payloads import OMNI_PAYLOAD_KEY, AdditionalInformationPayload
from support.engines.async_on_cpu import async_scheduling
from support.models.bare_config import write_bare_config

pytestmark = pytest.mark.engine

GOOD = AdditionalInformationPayload.from_mapping({"x": torch.ones(3, 4)}).to_bytes()
BAD = GOOD[:-1] + bytes([GOOD[-1] ^ 1])


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with only a configuration. vLLM fills in random weights (load_format="dummy")."""
    directory = tmp_path_factory.mktemp("scheduler_engine_model")
    return write_bare_config(directory, max_position_embeddings=128, eos_token_id=1)


def build(model_dir: Path, scheduler: str, **kwargs: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model_dir),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=64,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            block_size=32,
            kv_cache_memory_bytes=8 << 20,
            enforce_eager=True,
            enable_prefix_caching=False,
            disable_log_stats=True,
            scheduler_cls=f"omni_stage.vllm_adapter.{scheduler}",
            **kwargs,
        )
    )


@pytest.fixture(scope="module", params=["OmniScheduler", "OmniAsyncScheduler"])
def autoregressive(request: pytest.FixtureRequest, model_dir: Path) -> Iterator[Any]:
    asynchronous = request.param == "OmniAsyncScheduler"
    with async_scheduling() if asynchronous else nullcontext():
        engine = build(model_dir, f"scheduling.scheduler.{request.param}", async_scheduling=asynchronous)
        assert (engine.engine_core.engine_core.batch_queue is not None) is asynchronous
        yield engine
        engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def pooling(model_dir: Path) -> Iterator[Any]:
    settings = {"omni_diffusion": {"max_batch": 3, "queue_timeout_s": 60.0}}
    engine = build(
        model_dir,
        "diffusion.scheduler.DiffusionScheduler",
        runner="pooling",
        async_scheduling=False,
        additional_config=settings,
    )
    yield engine
    engine.engine_core.shutdown()


def test_bad_payload_ends_its_request_and_the_engine_keeps_serving(autoregressive):
    from vllm import SamplingParams

    def submit(name: str, raw: bytes | None) -> None:
        params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True, detokenize=False)
        params.extra_args = None if raw is None else {OMNI_PAYLOAD_KEY: raw}
        autoregressive.add_request(name, {"prompt_token_ids": [3, 4, 5]}, params)

    for round_number in range(2):
        for name, raw in (("bad", BAD), ("good", GOOD), ("plain", None)):
            submit(f"{name}{round_number}", raw)
        finished = {}
        while autoregressive.has_unfinished_requests():
            finished |= {
                output.request_id[:-1]: output.outputs[0] for output in autoregressive.step() if output.finished
            }
        assert finished.keys() == {"bad", "good", "plain"}
        assert finished["bad"].finish_reason == "abort"
        assert finished["bad"].stop_reason.startswith("invalid_payload: ")
        assert list(finished["good"].token_ids) == list(finished["plain"].token_ids)
        assert len(finished["good"].token_ids) == 5
        assert {finished[name].finish_reason for name in ("good", "plain")} == {"length"}
    assert autoregressive.engine_core.engine_core.scheduler.requests == {}


def run_pooling(engine: Any, payloads: dict[str, bytes]) -> tuple[list[int], dict[str, Any]]:
    """Returns how many outputs each step had, and each request's last output by id, as the engine core sends them."""
    from vllm import PoolingParams

    for name, raw in payloads.items():
        params = PoolingParams(task="embed", extra_kwargs={OMNI_PAYLOAD_KEY: raw})
        engine.add_request(name, {"prompt_token_ids": [3]}, params)
    steps, results = [], {}
    scheduler = engine.engine_core.engine_core.scheduler
    while scheduler.has_unfinished_requests():
        outputs = engine.engine_core.get_output().outputs
        steps.append(len(outputs))
        # vLLM appends a suffix to ids inside the engine.
        results |= {output.request_id.split("-")[0]: output for output in outputs}
    return steps, results


def test_diffusion_requests_share_steps_and_end_in_one(pooling):
    steps, results = run_pooling(pooling, {f"r{index}": GOOD for index in range(5)})
    assert [size for size in steps if size] == [3, 2]
    assert {result.stop_reason for result in results.values()} == {"diffusion_done"}
    assert all(result.pooling_output.shape == (64,) for result in results.values())


def test_bad_diffusion_payload_ends_its_request_only(pooling):
    _, results = run_pooling(pooling, {"bad": BAD, "good": GOOD})
    assert results["bad"].stop_reason.startswith("invalid_payload")
    assert results["bad"].pooling_output.numel() == 0
    assert results["good"].stop_reason == "diffusion_done"
    _, results = run_pooling(pooling, {"next": GOOD})
    assert results["next"].stop_reason == "diffusion_done"


def test_queue_timeout_reaches_the_client(pooling, monkeypatch):
    scheduler = pooling.engine_core.engine_core.scheduler
    times = itertools.count(0.0, 100.0)
    monkeypatch.setattr(scheduler, "clock", lambda: next(times))
    _, results = run_pooling(pooling, {"late": GOOD})
    assert results["late"].stop_reason == "queue_timeout"
    assert results["late"].pooling_output.numel() == 0
    assert scheduler.requests == {}
