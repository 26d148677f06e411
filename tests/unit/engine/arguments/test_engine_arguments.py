"""OmniEngineArgs and OmniModelConfig: what wins, what is closed, and what each mistake is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import EngineArgs, InputEdge, Limits, ModelSource, StageConfig, Timeouts
from omni_stage.engine.arguments.engine_args import (
    CPU_KV_CACHE_BYTES,
    OmniEngineArgs,
    build_engine_args,
    load_model_config,
)
from omni_stage.errors import ConfigurationError
from omni_stage.models.component import Component
from omni_stage.models.manifest import describe


@dataclass
class Described:
    """As much of a Component as the arguments are built from."""

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    kind: EngineKind = EngineKind.AUTOREGRESSIVE
    id: str = "test/described"
    queue_timeout_s: float | None = None
    takes_prompt_embeds: bool = False
    reads: str | None = None

    @property
    def facts(self) -> ComponentFacts:
        return describe(
            id=self.id,
            kind=self.kind,
            reads=self.reads,
            publishes="test/rows",
            publishes_rows=not self.kind.is_one_shot,
            queue_timeout_s=self.queue_timeout_s,
            takes_prompt_embeds=self.takes_prompt_embeds,
        )

    def engine_kwargs(self) -> dict[str, Any]:
        return dict(self.kwargs)


CAPTURING = {"additional_config": {"omni": {"capture_rows": True}}}


def build(
    user: EngineArgs | None = None,
    *,
    on_cpu: bool = True,
    gpus: int = 1,
    timeouts: Timeouts | None = None,
    source: str | None = None,
    limits: Limits | None = None,
    **described: Any,
) -> OmniEngineArgs:
    config = StageConfig(
        pipeline="p",
        stage="s",
        component="test/described",
        model=ModelSource(path="/models/m"),
        engine_args=user or EngineArgs(),
        tensor_parallel_size=gpus,
        timeouts=timeouts or Timeouts(),
        input=InputEdge(source=source) if source else None,
        limits=limits or Limits(),
    )
    component = Described(**described, reads="test/tensors" if source else None)
    return build_engine_args(config, cast(Component, component), on_cpu=on_cpu)


def test_the_user_wins_over_the_component() -> None:
    args = build(
        EngineArgs(max_model_len=64, dtype="float32"),
        kwargs={"max_model_len": 8192, "dtype": "bfloat16", "max_num_seqs": 4},
    )
    assert (args.max_model_len, args.dtype, args.max_num_seqs) == (64, "float32", 4)


def test_vllm_kwargs_hold_only_what_is_said() -> None:
    kwargs = build().vllm_kwargs(worker_cls="w", scheduler_cls="s")
    assert kwargs == {
        "model": "/models/m",
        "runner": "generate",
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
    every = {name for name in OmniEngineArgs.__dataclass_fields__ if name != "kind"} | kwargs.keys()
    assert every <= set(AsyncEngineArgs.__dataclass_fields__)


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
        pytest.param({"user": EngineArgs(mm_processor_cache_mib=512)}, 0.5, id="said in MiB"),
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
        pytest.param({"kind": EngineKind.DIFFUSION}, False, id="diffusion"),
    ],
)
def test_prefix_caching(options: dict[str, Any], expected: bool | None) -> None:
    assert build(**options).enable_prefix_caching is expected


def test_a_diffusion_stage_pools_and_limits_its_queue() -> None:
    described = {"kind": EngineKind.DIFFUSION, "queue_timeout_s": 30.0}
    additional = {"additional_config": {"omni_diffusion": {"max_batch": 2}}}
    args = build(kwargs=additional, **described)
    assert args.vllm_kwargs(worker_cls="w", scheduler_cls="s")["runner"] == "pooling"
    assert args.additional_config == {"omni_diffusion": {"max_batch": 2, "queue_timeout_s": 30.0}}
    user = build(timeouts=Timeouts(queue=5.0), kwargs=additional, **described)
    assert user.additional_config["omni_diffusion"]["queue_timeout_s"] == 5.0


DIFFUSION_KWARGS = {
    "max_model_len": 16384,
    "max_num_batched_tokens": 16384,
    "max_num_seqs": 32,
    "enforce_eager": True,
    "additional_config": {"omni_diffusion": {"step_work": 4096}},
}


@pytest.mark.parametrize(
    ("user", "settings", "batched_tokens"),
    [
        pytest.param(None, {"step_work": 4096, "max_batch": 32}, 16384, id="the component's"),
        pytest.param(
            EngineArgs(max_num_seqs=4, max_num_batched_tokens=1000),
            {"step_work": 1000, "max_batch": 4},
            16384,
            id="smaller steps, though vLLM must let the longest request through",
        ),
        pytest.param(
            EngineArgs(max_num_batched_tokens=50_000),
            {"step_work": 50_000, "max_batch": 32},
            50_000,
            id="larger steps",
        ),
        pytest.param(
            EngineArgs(enforce_eager=True),
            {"step_work": 4096, "max_batch": 32, "cuda_graphs": False},
            16384,
            id="no graphs of the model's own",
        ),
        pytest.param(
            EngineArgs(enforce_eager=False), {"step_work": 4096, "max_batch": 32}, 16384, id="graphs, as by default"
        ),
    ],
)
def test_a_diffusion_stages_steps_are_bounded(
    user: EngineArgs | None, settings: dict[str, Any], batched_tokens: int
) -> None:
    args = build(user, kind=EngineKind.DIFFUSION, kwargs=DIFFUSION_KWARGS)
    assert args.additional_config["omni_diffusion"] == settings
    assert args.max_num_batched_tokens == batched_tokens
    assert args.enforce_eager, "vLLM has nothing to compile or capture here"


@pytest.mark.parametrize(
    ("user", "on_cpu", "step_work"),
    [
        (None, True, 72),
        (None, False, 4096),
        (EngineArgs(max_num_batched_tokens=1000), True, 1000),
        (EngineArgs(max_num_batched_tokens=1000), False, 1000),
    ],
)
def test_a_component_may_have_smaller_steps_for_a_cpu(user: EngineArgs | None, on_cpu: bool, step_work: int) -> None:
    kwargs = {**DIFFUSION_KWARGS, "additional_config": {"omni_diffusion": {"step_work": 4096, "cpu_step_work": 72}}}
    args = build(user, on_cpu=on_cpu, kind=EngineKind.DIFFUSION, kwargs=kwargs)
    assert args.additional_config["omni_diffusion"] == {"step_work": step_work, "max_batch": 32}


@pytest.mark.parametrize("kind", EngineKind)
def test_payloads_are_bounded_by_what_the_stage_may_hold(kind: EngineKind) -> None:
    from omni_stage.vllm_adapter.names import PAYLOAD_LIMITS

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
        pytest.param(
            {"user": EngineArgs(block_size=32), "kind": EngineKind.DIFFUSION}, "engineArgs.blockSize", id="no KV cache"
        ),
        pytest.param(
            {"user": EngineArgs(max_num_batched_tokens=4, max_num_seqs=8)},
            "engineArgs.maxNumBatchedTokens",
            id="a step smaller than its requests",
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "holds no config.json", id="missing"),
        pytest.param("{", "cannot be read as JSON", id="not JSON"),
        pytest.param("[]", "names no model_type", id="no object"),
        pytest.param('{"architectures": []}', "names no model_type", id="no model_type"),
        pytest.param('{"model_type": "x", "architectures": "X"}', "list of names", id="architectures of a wrong type"),
    ],
)
def test_bad_checkpoint(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_model_config(tmp_path)
    assert caught.value.details.field == "model.path"


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a directory"):
        load_model_config(tmp_path / "absent")


def test_weights_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blobs" / "0a1b")
    with pytest.raises(
        ConfigurationError, match=r"model.safetensors is a link to nowhere, or user \d+ may not"
    ) as caught:
        load_model_config(tmp_path)
    assert caught.value.details.field == "model.path"


def test_good_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}')
    config = load_model_config(tmp_path)
    assert config.name == "Qwen2ForCausalLM"
    assert (config.model_type, config.architectures) == ("qwen2", ("Qwen2ForCausalLM",))
