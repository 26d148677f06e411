"""OmniEngineArgs and OmniModelConfig: what wins, what is closed, and what each mistake is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from omni_proto.stage_config import EngineArgs, ModelSource, StageConfig, Timeouts
from omni_stage.engine.arguments import CPU_KV_CACHE_BYTES, OmniEngineArgs, build_engine_args, load_model_config
from omni_stage.errors import ConfigurationError
from omni_stage.models.component import Component, EngineKind


@dataclass
class Described:
    """As much of a Component as the arguments are built from."""

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    kind: EngineKind = EngineKind.AUTOREGRESSIVE
    id: str = "test/described"
    queue_timeout_s: float | None = None

    def engine_kwargs(self) -> dict[str, Any]:
        return dict(self.kwargs)


CAPTURING = {"additional_config": {"omni": {"capture_rows": "hidden"}}}


def build(
    user: EngineArgs | None = None,
    *,
    on_cpu: bool = True,
    gpus: int = 1,
    timeouts: Timeouts | None = None,
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
    )
    return build_engine_args(config, cast(Component, Described(**described)), on_cpu=on_cpu)


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
        "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES,
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
    ],
)
def test_kv_cache_memory(user: EngineArgs | None, options: dict[str, Any], expected: int | None) -> None:
    assert build(user, **options).kv_cache_memory_bytes == expected


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
            {"user": EngineArgs(enable_prefix_caching=True), "kwargs": {"enable_prefix_caching": False}},
            "engineArgs.enablePrefixCaching",
            id="prefix caching that the component rules out",
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
    assert (config.model_type, config.architectures) == ("qwen2", ("Qwen2ForCausalLM",))
