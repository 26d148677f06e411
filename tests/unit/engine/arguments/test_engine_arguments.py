"""OmniEngineArgs: which setting wins, what vLLM gets, and the error for each mistake."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest

from omni_proto.pipeline.components import EngineKind
from omni_proto.stage_config import EngineArgs, Limits, Modality, ModelSource, StageConfig, Timeouts
from omni_proto.stage_config.extra_args import ALLOWED
from omni_stage.engine.arguments.engine_args import CPU_KV_CACHE_BYTES, OWN_FIELDS, OmniEngineArgs
from omni_stage.engine.factory import build_stage_engine
from omni_stage.errors import ConfigurationError
from support.stages.described_engines import CAPTURING, HASHING, KEEPING, build


def test_the_user_wins_over_the_component() -> None:
    args = build(
        EngineArgs(max_model_len=64, dtype="float32"),
        kwargs={"max_model_len": 8192, "dtype": "bfloat16", "max_num_seqs": 4},
    )
    assert (args.max_model_len, args.dtype, args.max_num_seqs) == (64, "float32", 4)


def test_vllm_kwargs_hold_only_what_is_set() -> None:
    """An argument that neither user, component nor OmniEngineArgs sets is left to vLLM."""
    kwargs = build().vllm_kwargs(worker_cls="w", scheduler_cls="s")
    assert kwargs == {
        "model": "/models/m",
        "runner": "generate",
        "config_format": "hf",
        "worker_cls": "w",
        "scheduler_cls": "s",
        "trust_remote_code": False,
        "use_tqdm_on_load": False,
        "load_format": "safetensors",
        "additional_config": {},
        "tensor_parallel_size": 1,
        "async_scheduling": False,
        "enforce_eager": True,
        "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES,
        "mm_processor_cache_gb": 0.0,
        "scheduling_policy": "priority",
    }


def test_every_argument_is_one_of_vllms() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    kwargs = build(kind=EngineKind.DIFFUSION).vllm_kwargs(worker_cls="w", scheduler_cls="s")
    every = {name for name in OmniEngineArgs.__dataclass_fields__ if name not in OWN_FIELDS} | kwargs.keys()
    assert every <= set(AsyncEngineArgs.__dataclass_fields__)


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (EngineArgs(max_num_seqs=1), 1500),
        (EngineArgs(max_num_seqs=3), 1500),
        (EngineArgs(max_num_seqs=4), None),
        (EngineArgs(max_num_seqs=4, max_model_len=100), 1500),
        (EngineArgs(max_num_seqs=1, max_num_batched_tokens=2000), 2000),
        (EngineArgs(), None),
    ],
)
def test_a_step_admits_a_medium_that_is_encoded_whole(user: EngineArgs, expected: int | None) -> None:
    args = build(user, kwargs={"max_model_len": 448, "least_batched_tokens": 1500})
    assert args.max_num_batched_tokens == expected
    assert "least_batched_tokens" not in args.vllm_kwargs(worker_cls="w", scheduler_cls="s")


def test_extra_arguments_reach_vllm_and_replace_no_own_field() -> None:
    args = dataclasses.replace(build(), extra={"optimization_level": 2, "dtype": "float16"})
    kwargs = args.vllm_kwargs(worker_cls="w", scheduler_cls="s")
    assert kwargs["optimization_level"] == 2
    assert (
        dataclasses.replace(args, dtype="float32").vllm_kwargs(worker_cls="w", scheduler_cls="s")["dtype"] == "float32"
    )
    assert not {*ALLOWED} & (OmniEngineArgs.__dataclass_fields__.keys() | kwargs.keys() - {"optimization_level"})


def test_an_engine_of_its_own_takes_no_extra_arguments() -> None:
    config = StageConfig(
        pipeline="p",
        stage="decoder",
        component="sim/thinker",
        model=ModelSource(path="/m"),
        outputs=[Modality.TEXT],
        extra_engine_args={"optimization_level": 2},
    )
    with pytest.raises(
        ConfigurationError, match="extraEngineArgs are for vLLM, which does not run sim/thinker"
    ) as refused:
        build_stage_engine(config)
    assert refused.value.details.field == "extraEngineArgs"


def test_vllm_knows_every_value_of_a_closed_list() -> None:
    from vllm.config.cache import CacheDType
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    def values(name: str) -> set[str]:
        return set(get_args(get_args(EngineArgs.model_fields[name].annotation)[0]))

    assert values("quantization") <= set(QUANTIZATION_METHODS)
    assert values("kv_cache_dtype") <= set(get_args(CacheDType))


@pytest.mark.parametrize(
    ("user", "options", "expected"),
    [
        pytest.param(None, {"on_cpu": False}, None, id="a GPU's share is vLLM's choice"),
        pytest.param(EngineArgs(kv_cache_memory_mib=8), {}, 8 << 20, id="said in MiB"),
        pytest.param(EngineArgs(gpu_memory_utilization=0.5), {}, None, id="said as a share"),
        pytest.param(
            EngineArgs(gpu_memory_utilization=0.5, kv_cache_memory_mib=8), {}, 8 << 20, id="both, to share a GPU"
        ),
    ],
)
def test_kv_cache_memory(user: EngineArgs | None, options: dict[str, Any], expected: int | None) -> None:
    assert build(user, **options).kv_cache_memory_bytes == expected


@pytest.mark.parametrize(
    ("user", "options", "expected"),
    [
        pytest.param(None, {"on_cpu": True}, True, id="a CPU compiles only when asked to"),
        pytest.param(EngineArgs(enforce_eager=False), {"on_cpu": True}, False, id="asked to"),
        pytest.param(None, {"on_cpu": False}, None, id="a GPU does as vLLM does"),
        pytest.param(EngineArgs(enforce_eager=True), {"on_cpu": False}, True, id="a GPU told not to"),
    ],
)
def test_enforce_eager(user: EngineArgs | None, options: dict[str, Any], expected: bool | None) -> None:
    assert build(user, **options).enforce_eager is expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, 0.0, id="none by default"),
        pytest.param({"user": EngineArgs(mm_processor_cache_mib=512), "media": ("image",)}, 0.5, id="said in MiB"),
        pytest.param({"kwargs": {"mm_processor_cache_gb": 2.0}}, 2.0, id="the component's"),
        pytest.param(
            {"user": EngineArgs(mm_processor_cache_mib=0), "kwargs": {"mm_processor_cache_gb": 2.0}},
            0.0,
            id="switched off by the user",
        ),
    ],
)
def test_cache_of_processed_media(options: dict[str, Any], expected: float) -> None:
    assert build(**options).vllm_kwargs(worker_cls="w", scheduler_cls="s")["mm_processor_cache_gb"] == expected


def test_share_of_media_reaches_the_scheduler() -> None:
    from omni_stage.vllm_adapter.scheduling.media_turns import MediaShare

    def turns(user: EngineArgs | None) -> MediaShare:
        arguments = build(user, media=("image",)).vllm_kwargs(worker_cls="w", scheduler_cls="s")
        assert "max_media_share" not in arguments
        return MediaShare.from_additional_config(arguments.get("additional_config"))

    assert turns(None).share == 0.5
    assert turns(EngineArgs(max_media_share=0.25)).share == 0.25


def test_prompt_embeds_are_off_unless_said() -> None:
    assert "enable_prompt_embeds" not in build().vllm_kwargs(worker_cls="w", scheduler_cls="s")
    user = EngineArgs(enable_prompt_embeds=True)
    assert build(user, takes_prompt_embeds=True).vllm_kwargs(worker_cls="w", scheduler_cls="s")["enable_prompt_embeds"]


@pytest.mark.parametrize(
    ("options", "because"),
    [
        pytest.param({}, "this component takes no prompt embeddings", id="component"),
        pytest.param({"kwargs": CAPTURING}, "reads this stage's rows, which are made of token ids", id="captured rows"),
        pytest.param({"source": "thinker"}, "this stage reads the tensors of another stage", id="a later stage"),
        pytest.param(
            {"kind": EngineKind.DIFFUSION, "source": "talker"},
            "this stage reads the tensors of another stage",
            id="diffusion",
        ),
    ],
)
def test_prompt_embeds_are_refused_where_they_have_no_place(options: dict[str, Any], because: str) -> None:
    with pytest.raises(ConfigurationError, match=because) as caught:
        build(EngineArgs(enable_prompt_embeds=True), **({"takes_prompt_embeds": "kwargs" in options} | options))
    assert caught.value.details.field == "engineArgs.enablePromptEmbeds"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({"on_cpu": True}, False, id="CPU"),
        pytest.param({"on_cpu": False}, True, id="GPU"),
        pytest.param({"on_cpu": False, "kind": EngineKind.DIFFUSION}, False, id="diffusion on a GPU"),
    ],
)
def test_async_scheduling(options: dict[str, Any], expected: bool) -> None:
    assert build(**options).async_scheduling is expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, None, id="vLLM's choice"),
        pytest.param({"user": EngineArgs(enable_prefix_caching=True)}, True, id="nobody reads the rows"),
        pytest.param({"kwargs": CAPTURING}, False, id="rows are captured"),
        pytest.param({"kwargs": HASHING}, None, id="rows of sampled tokens are captured"),
        pytest.param({"kwargs": KEEPING, "reuses_rows": True}, None, id="rows are kept"),
        pytest.param(
            {"kwargs": KEEPING, "reuses_rows": True, "user": EngineArgs(enable_prefix_caching=False)},
            False,
            id="rows could be kept",
        ),
        pytest.param({"kind": EngineKind.DIFFUSION}, False, id="diffusion"),
    ],
)
def test_prefix_caching(options: dict[str, Any], expected: bool | None) -> None:
    assert build(**options).enable_prefix_caching is expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, 7, id="the component's size"),
        pytest.param({"limits": Limits(max_inflight_bytes=1 << 20)}, 1 << 18, id="a share of the byte budget"),
        pytest.param({"user": EngineArgs(rows_cache_mib=2)}, 2 << 20, id="said in MiB"),
    ],
)
def test_kept_rows_are_bounded(options: dict[str, Any], expected: int) -> None:
    args = build(kwargs=KEEPING, reuses_rows=True, **options)
    assert args.additional_config["omni"] == {"capture_rows": True, "rows_cache_bytes": expected}


@pytest.mark.parametrize("kind", EngineKind)
def test_payloads_are_bounded_by_what_the_stage_may_hold(kind: EngineKind) -> None:
    """A payload may be at most twice as large as limits.maxInflightBytes.

    In a diffusion stage, the embeddings of all requests in flight may together take at most limits.maxInflightBytes.
    """
    from omni_stage.vllm_adapter.wiring.names import PAYLOAD_LIMITS

    args = build(kind=kind, limits=Limits(max_inflight_bytes=1 << 20))
    assert args.additional_config[PAYLOAD_LIMITS] == {"max_tensor_bytes": 2 << 20, "max_payload_bytes": 2 << 20}
    if kind is EngineKind.DIFFUSION:
        assert args.additional_config["omni_diffusion"]["embedding_budget_bytes"] == 1 << 20


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        pytest.param(
            {"user": EngineArgs(enable_prefix_caching=True), "kwargs": CAPTURING},
            "engineArgs.enablePrefixCaching",
            id="prefix caching where rows are captured",
        ),
        pytest.param({"user": EngineArgs(rows_cache_mib=2)}, "engineArgs.rowsCacheMib", id="rows that nothing keeps"),
        pytest.param(
            {"user": EngineArgs(block_size=32), "kind": EngineKind.DIFFUSION}, "engineArgs.blockSize", id="no KV cache"
        ),
        pytest.param(
            {"user": EngineArgs(max_num_batched_tokens=4, max_num_seqs=8)},
            "engineArgs.maxNumBatchedTokens",
            id="a step smaller than its requests",
        ),
        pytest.param(
            {"user": EngineArgs(max_num_batched_tokens=1000), "kwargs": {"least_batched_tokens": 1500}},
            "engineArgs.maxNumBatchedTokens",
            id="a step smaller than a medium",
        ),
        pytest.param(
            {"user": EngineArgs(enforce_eager=False), "kwargs": {"enforce_eager": True}},
            "engineArgs.enforceEager",
            id="graphs that the component rules out",
        ),
        pytest.param({"timeouts": Timeouts(queue=1.0)}, "timeouts.queue", id="queue timeout of a text stage"),
        pytest.param({"kwargs": {"trust_remote_code": True}}, "component", id="a component asks for remote code"),
        pytest.param({"kwargs": {"worker_cls": "os.system"}}, "component", id="a component names a worker"),
        pytest.param({"kwargs": {"runner": "pooling"}}, "component", id="a runner of the other kind"),
    ],
)
def test_refused_with_field_and_remedy(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build(**options)
    assert caught.value.details.field == wrong
    assert wrong in str(caught.value) or wrong == "component"
