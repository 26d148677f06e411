"""OmniEngineArgs and OmniModelConfig: from a StageConfig and its component to the arguments of vLLM's engine.

A user can set only the fields of omni_proto.stage_config.EngineArgs, and a component only those of `OmniEngineArgs`. A
user cannot choose worker, scheduler, remote code or paths. All functions are pure except `load_model_config`, which
reads the checkpoint's config.json. This module does not import vLLM.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omni_proto.pipeline.components import EngineKind, refuse_engine_args, refuse_timeouts
from omni_proto.stage_config import EngineArgs, StageConfig, parse_extra_arg
from omni_stage.errors import ConfigurationError
from omni_stage.models.component import Component
from omni_stage.vllm_adapter.wiring.names import DIFFUSION_SETTINGS, MEDIA_SHARE, PAYLOAD_LIMITS

CPU_STEP_WORK = "cpu_step_work"
"""Key in a component's diffusion settings: the value of `step_work`, the maximum work in flight, on a CPU. A CPU runs a
batch no faster than the same requests one by one, and a request that arrives while a batch runs gets its first audio
only after the whole batch."""
PAYLOAD_SHARE = 2
"""A payload may be up to this many times as large as the stage's byte budget, because a component may widen 16-bit rows
to 32 bits."""
_QUANTIZATION = ("quantization_config", "compression_config")
"""Keys of config.json that say how the weights are quantized."""
ROWS_CACHE_SHARE = 0.25
"""Share of the stage's byte budget that a cache of published rows may hold in addition to the budget."""
CPU_KV_CACHE_BYTES = 512 << 20
"""Size of the KV cache on a CPU if engineArgs set none. vLLM's default is a share of the whole machine's memory."""


def payload_limits(byte_budget: int) -> dict[str, int]:
    """Returns the fields of PayloadLimits: no payload is larger than PAYLOAD_SHARE times the stage's byte budget."""
    return {"max_tensor_bytes": PAYLOAD_SHARE * byte_budget, "max_payload_bytes": PAYLOAD_SHARE * byte_budget}


def diffusion_settings(
    component: Mapping[str, Any],
    user: EngineArgs,
    *,
    max_num_seqs: int | None,
    queue_timeout_s: float | None,
    byte_budget: int | None,
    on_cpu: bool,
) -> dict[str, Any]:
    """Returns the fields of DiffusionSettings.

    The stage's batch size, work per step, CUDA graphs, queue timeout and byte budget override the component's settings.
    """
    component = dict(component)
    cpu_step_work = component.pop(CPU_STEP_WORK, None)
    if on_cpu and cpu_step_work is not None:
        component["step_work"] = cpu_step_work
    said: dict[str, Any] = {
        "queue_timeout_s": queue_timeout_s,
        "max_batch": max_num_seqs,
        "step_work": user.max_num_batched_tokens,
        "embedding_budget_bytes": byte_budget,
        "cuda_graphs": False if user.enforce_eager else None,
    }
    return component | {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True, slots=True)
class OmniModelConfig:
    """The validated fields of a checkpoint's config.json that the engine layer reads."""

    path: Path
    model_type: str
    architectures: tuple[str, ...]
    config: Mapping[str, Any] = field(repr=False)
    """The whole config.json."""

    @property
    def name(self) -> str:
        """The model's name for messages: the architectures that config.json lists, or model_type if it lists none."""
        return ", ".join(self.architectures) or self.model_type

    @property
    def is_quantized(self) -> bool:
        """Whether config.json, at any level of nesting, says how weights are quantized."""
        return _is_quantized(self.config)


def _is_quantized(config: Mapping[str, Any]) -> bool:
    parts = (part for part in config.values() if isinstance(part, Mapping))
    return any(config.get(name) for name in _QUANTIZATION) or any(map(_is_quantized, parts))


def load_model_config(path: Path) -> OmniModelConfig:
    """Read config.json of the checkpoint directory.

    Raises ConfigurationError (field "model.path") if the directory or its config.json does not exist, config.json is
    malformed or has no model_type, or this process cannot read the weights.
    """
    file = path / "config.json"
    if not path.is_dir():
        raise _bad_checkpoint(f"model.path {path} is not a directory; fetch the checkpoint or correct the path")
    if not file.is_file() and (path / "params.json").is_file():
        raise _bad_checkpoint(
            f"model.path {path} holds Mistral's own format (params.json, consolidated*.safetensors), which no stage "
            "reads; add the files of Hugging Face's format (config.json, tokenizer.json, model*.safetensors), which "
            "most of Mistral's repositories hold too, or convert the checkpoint with transformers"
        )
    if not file.is_file():
        raise _bad_checkpoint(
            f"model.path {path} holds no config.json; it must be a checkpoint as Hugging Face serves it"
        )
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _bad_checkpoint(
            f"{file} cannot be read as JSON ({type(error).__name__}); fetch the checkpoint again"
        ) from error
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise _bad_checkpoint(f"{file} has no model_type, so it is not a model configuration")
    architectures = data.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(item, str) for item in architectures):
        raise _bad_checkpoint(f"{file}: architectures must be a list of names")
    # safetensors would report an unreadable file as missing, and only in the engine's process.
    for weights in sorted(path.glob("*.safetensors")):
        if not os.access(weights, os.R_OK):
            raise _bad_checkpoint(
                f"{weights} is a link to nowhere, or user {os.getuid()} may not read it; mount what it points to, or "
                "let that user read it (chmod a+r)"
            )
    return OmniModelConfig(path, data["model_type"], tuple(architectures), data)


OWN_FIELDS = frozenset(("kind", "least_batched_tokens", "extra"))
"""Fields of OmniEngineArgs that vLLM does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OmniEngineArgs:
    """Every argument of vLLM's AsyncEngineArgs that a stage sets. None leaves vLLM's default."""

    model: str
    kind: EngineKind
    # Set by the component.
    tokenizer: str | None = None
    skip_tokenizer_init: bool | None = None
    hf_overrides: Any = None
    generation_config: str | None = None
    hf_config_path: str | None = None
    language_model_only: bool | None = None
    limit_mm_per_prompt: Mapping[str, int] | None = None
    mm_processor_kwargs: Mapping[str, Any] | None = None
    logits_processors: Sequence[str] | None = None
    additional_config: Mapping[str, Any] = field(default_factory=dict)
    least_batched_tokens: int | None = None
    """Fewest tokens that a step must admit: those of a medium that the model encodes whole. Not an argument of vLLM."""
    # Set by engineArgs, except for the last three. If engineArgs do not set a field, the component's value applies.
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    mm_processor_cache_gb: float = 0.0
    """GiB of processed media that the engine may cache. vLLM 0.32's default is 4. The stage's byte budget does not
    include this cache."""
    enforce_eager: bool | None = None
    enable_prefix_caching: bool | None = None
    enable_prompt_embeds: bool | None = None
    load_format: str | None = None
    reasoning_parser: str | None = None
    block_size: int | None = None
    tensor_parallel_size: int = 1
    async_scheduling: bool | None = None
    scheduling_policy: str = "priority"
    """Requests of equal priority keep their order of arrival, as with vLLM's default policy, "fcfs"; see
    Admission.admit for those of a client that has others."""
    extra: Mapping[str, int | float | bool | str] = field(default_factory=dict)
    """Further arguments, none of which is one of the fields above."""

    @property
    def captures_rows(self) -> bool:
        """Whether the runner captures the rows that the stage publishes (see vllm_adapter/worker/config.py)."""
        omni = self.additional_config.get("omni", {})
        return isinstance(omni, Mapping) and omni.get("capture_rows") is True

    def for_checkpoint(self, model: OmniModelConfig) -> OmniEngineArgs:
        """Returns the arguments for this checkpoint.

        vLLM 0.32 has two names for FP8: "fp8" for checkpoints whose weights are FP8 already, and "fp8_per_tensor" for
        weights that vLLM quantizes while it loads them. A user sets "fp8" in both cases.
        """
        if self.quantization == "fp8" and not model.is_quantized:
            return dataclasses.replace(self, quantization="fp8_per_tensor")
        return self

    def vllm_kwargs(self, *, worker_cls: str, scheduler_cls: str) -> dict[str, Any]:
        """Returns the keyword arguments of vLLM's AsyncEngineArgs."""
        kwargs = {
            name: value
            for name in (item.name for item in dataclasses.fields(self))
            if name not in OWN_FIELDS and (value := getattr(self, name)) is not None
        }
        kwargs["runner"] = "pooling" if self.kind.is_one_shot else "generate"
        return {**self.extra, **kwargs} | {
            # With "auto", vLLM reads params.json instead of config.json if the checkpoint holds consolidated weights.
            "config_format": "hf",
            "worker_cls": worker_cls,
            "scheduler_cls": scheduler_cls,
            "trust_remote_code": False,
            "use_tqdm_on_load": False,
        }


def build_engine_args(
    config: StageConfig, component: Component, *, on_cpu: bool, byte_budget: int | None = None
) -> OmniEngineArgs:
    """Returns the component's arguments. The user's engineArgs, and what the stage's kind requires, override them.

    `byte_budget`: bytes that the stage may hold if limits.maxInflightBytes is not set. If neither is set, payloads have
    their default limits.

    Raises ConfigurationError, which names the field and the remedy.
    """
    component_args = _component_args(component)
    chosen: dict[str, Any] = {"model": config.model.path, **component_args, **_user_args(config.engine_args)}
    chosen["tensor_parallel_size"] = config.tensor_parallel_size
    chosen.setdefault("load_format", "safetensors")
    chosen["extra"] = {name: parse_extra_arg(name, value) for name, value in config.extra_engine_args.items()}
    # Set even if false, because the scheduler's class depends on it. vLLM's CPU platform has no async scheduling.
    chosen["async_scheduling"] = not on_cpu and not component.facts.kind.is_one_shot
    if on_cpu:
        # Compiling needs a C++ compiler and a minute, but gains little: kernel launches do not dominate a CPU's steps.
        chosen.setdefault("enforce_eager", True)
    if on_cpu and "kv_cache_memory_bytes" not in chosen and "gpu_memory_utilization" not in chosen:
        chosen["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
    byte_budget = config.limits.max_inflight_bytes or byte_budget
    if byte_budget is not None:
        additional = chosen.get("additional_config", {})
        chosen["additional_config"] = {PAYLOAD_LIMITS: payload_limits(byte_budget), **additional}
    if config.engine_args.max_media_share is not None:
        additional = chosen.get("additional_config", {})
        chosen["additional_config"] = {**additional, MEDIA_SHARE: config.engine_args.max_media_share}
    args = _with_whole_media(OmniEngineArgs(kind=component.facts.kind, **chosen))
    _check(config, args, component, component_args)
    if component.facts.kind.is_one_shot:
        return _with_diffusion(args, config, component, component_args, byte_budget, on_cpu)
    if args.captures_rows:
        return _with_rows_cache(args, config.engine_args, byte_budget)
    return args


def _with_whole_media(args: OmniEngineArgs) -> OmniEngineArgs:
    """Returns the arguments with a step that admits the largest medium, unless a user has set the size of a step.

    vLLM 0.32 lowers its default to max_num_seqs * max_model_len, and refuses to start if that is less than a medium.
    """
    least, sequences, length = args.least_batched_tokens, args.max_num_seqs, args.max_model_len
    if least is None or sequences is None or length is None or args.max_num_batched_tokens is not None:
        return args
    return args if sequences * length >= least else dataclasses.replace(args, max_num_batched_tokens=least)


_COMPONENT_FIELDS = frozenset(item.name for item in dataclasses.fields(OmniEngineArgs)) - {
    "kind",
    "tensor_parallel_size",
    "enable_prompt_embeds",
    "scheduling_policy",
    "extra",
}


def _component_args(component: Component) -> dict[str, Any]:
    given, facts = component.engine_kwargs(), component.facts
    runner = given.pop("runner", None)
    expected = "pooling" if component.facts.kind.is_one_shot else "generate"
    if runner not in (None, "auto", expected):
        raise ConfigurationError(
            f"component {facts.id} requests runner {runner!r}, but a stage of kind {facts.kind.value} "
            f"runs with {expected!r}",
            field="component",
        )
    unknown = sorted(given.keys() - _COMPONENT_FIELDS)
    if unknown:
        raise ConfigurationError(
            f"component {component.facts.id} sets engine arguments that a component may not set: {', '.join(unknown)}",
            field="component",
        )
    return {name: value for name, value in given.items() if value is not None}


def _user_args(args: EngineArgs) -> dict[str, Any]:
    given = args.model_dump(exclude_none=True)
    # The project's scheduler gets max_media_share in additional_config.
    given.pop("max_media_share", None)
    # Only the stage server parses tool calls. AsyncEngineArgs has a field for the reasoning parser only.
    given.pop("tool_call_parser", None)
    # Only the stage server reads this one too.
    given.pop("structured_output", None)
    # The project's scheduler gets this one in additional_config too.
    given.pop("rows_cache_mib", None)
    mib = given.pop("kv_cache_memory_mib", None)
    if mib is not None:
        given["kv_cache_memory_bytes"] = mib << 20
    cache_mib = given.pop("mm_processor_cache_mib", None)
    if cache_mib is not None:
        given["mm_processor_cache_gb"] = cache_mib / 1024
    return given


def _with_rows_cache(args: OmniEngineArgs, user: EngineArgs, byte_budget: int | None) -> OmniEngineArgs:
    """Returns the arguments of a stage whose rows are captured, with the size of its cache of rows.

    vLLM does not compute a cached prefix. So prefix caching is off unless rows are kept, or are of sampled tokens only.
    """
    omni = dict(args.additional_config["omni"])
    if omni.get("hash_inputs"):
        return args
    if not omni.get("rows_cache_bytes"):
        return dataclasses.replace(args, enable_prefix_caching=False)
    if user.rows_cache_mib is not None:
        omni["rows_cache_bytes"] = user.rows_cache_mib << 20
    elif byte_budget is not None:
        omni["rows_cache_bytes"] = max(1, int(byte_budget * ROWS_CACHE_SHARE))
    return dataclasses.replace(args, additional_config={**args.additional_config, "omni": omni})


def _with_diffusion(
    args: OmniEngineArgs,
    config: StageConfig,
    component: Component,
    component_args: Mapping[str, Any],
    byte_budget: int | None,
    on_cpu: bool,
) -> OmniEngineArgs:
    """Returns the arguments of a one-shot stage. The project's diffusion scheduler limits the work of each step, and
    the model itself captures CUDA graphs."""
    queue_timeout_s = config.timeouts.queue if config.timeouts.queue is not None else component.facts.queue_timeout_s
    settings = diffusion_settings(
        args.additional_config.get(DIFFUSION_SETTINGS, {}),
        config.engine_args,
        max_num_seqs=args.max_num_seqs,
        queue_timeout_s=queue_timeout_s,
        byte_budget=byte_budget,
        on_cpu=on_cpu,
    )
    # vLLM's own limit must admit the longest request. A request above the diffusion scheduler's limit runs alone.
    tokens = (args.max_num_batched_tokens, component_args.get("max_num_batched_tokens"), args.max_model_len)
    return dataclasses.replace(
        args,
        # The stage has no KV cache. vLLM's KV cache coordinator then requires prefix caching to be off.
        enable_prefix_caching=False,
        enforce_eager=component_args.get("enforce_eager"),
        max_num_batched_tokens=max((count for count in tokens if count is not None), default=None),
        additional_config={**args.additional_config, DIFFUSION_SETTINGS: settings},
    )


def _check(config: StageConfig, args: OmniEngineArgs, component: Component, component_args: Mapping[str, Any]) -> None:
    user, facts = config.engine_args, component.facts
    for objection in refuse_engine_args(facts, user, is_read=bool(config.downstream) or args.captures_rows):
        raise _bad_argument(objection.field, objection.why, objection.remedy)
    for objection in refuse_timeouts(facts, config.timeouts):
        path = f"timeouts.{objection.alias}"
        raise ConfigurationError(f"{path}: {objection.why}; {objection.remedy}", field=path)
    if user.enforce_eager is False and component_args.get("enforce_eager") and not args.kind.is_one_shot:
        raise _bad_argument("enforce_eager", "this component runs without CUDA graphs", "leave it out")
    if (
        not args.kind.is_one_shot
        and args.max_num_batched_tokens is not None
        and args.max_num_seqs is not None
        and args.max_num_batched_tokens < args.max_num_seqs
    ):
        raise _bad_argument(
            "max_num_batched_tokens",
            f"{args.max_num_batched_tokens} is below maxNumSeqs ({args.max_num_seqs})",
            "raise it",
        )
    least = args.least_batched_tokens
    if least is not None and args.max_num_batched_tokens is not None and args.max_num_batched_tokens < least:
        raise _bad_argument(
            "max_num_batched_tokens",
            f"{args.max_num_batched_tokens} is below {least}, the tokens of a medium, which component "
            f"{component.facts.id} encodes in one step",
            "raise it, or leave it out",
        )


def _bad_argument(name: str, problem: str, remedy: str) -> ConfigurationError:
    alias = EngineArgs.model_fields[name].alias or name
    return ConfigurationError(f"engineArgs.{alias}: {problem}; {remedy}", field=f"engineArgs.{alias}")


def _bad_checkpoint(message: str) -> ConfigurationError:
    return ConfigurationError(message, field="model.path")
