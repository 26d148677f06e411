"""Further arguments of vLLM that a stage may give where the administrator allows it: a closed list, by name and kind.

Only switches and numbers of speed and memory are here. Nothing here loads code, names a file or a host, or changes what
the stage server relies on; DENIED says why. A test holds both to vLLM's own EngineArgs (0.32), so that an upgrade that
renames one is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, Field, StringConstraints

EXTRA_NAME_PATTERN: Final = r"^[a-z][a-z0-9_]*$"
EXTRA_VALUE_PATTERN: Final = r"^[A-Za-z0-9_.-]+$"

WHOLE: Final = (
    *("long_prefill_token_threshold", "max_cudagraph_capture_size", "max_parallel_loading_workers"),
    *("num_gpu_blocks_override", "optimization_level", "distributed_timeout_seconds"),
)
"""Arguments whose value is a whole number."""
NUMBERS: Final = ("cpu_offload_gb", "kv_offloading_size")
SWITCHES: Final = (
    *("disable_cascade_attn", "disable_custom_all_reduce", "disable_hybrid_kv_cache_manager"),
    *("enable_expert_parallel", "enable_flashinfer_autotune", "enable_mfu_metrics", "cudagraph_metrics"),
    *("kv_cache_metrics", "skip_mm_profiling"),
)
"""Arguments whose value is true or false."""
CHOICES: Final = (
    *("attention_backend", "moe_backend", "linear_backend", "mm_encoder_attn_backend", "mm_encoder_tp_mode"),
    *("mamba_cache_dtype", "mamba_ssm_cache_dtype", "performance_mode", "safetensors_load_strategy"),
)
"""Arguments whose value is one of vLLM's words."""
ALLOWED: Final = tuple(sorted((*WHOLE, *NUMBERS, *SWITCHES, *CHOICES)))

DENIED: Final[Mapping[str, tuple[str, ...]]] = {
    "load code or change classes": (
        *("trust_remote_code", "hf_overrides", "model_class_overrides", "model_impl", "runner", "convert"),
        *("worker_cls", "worker_extension_cls", "scheduler_cls", "logits_processors", "io_processor_plugin"),
        *("reasoning_parser_plugin", "distributed_executor_backend", "compilation_config", "additional_config"),
        *("tokenizer_mode", "config_format", "model_loader_extra_config", "quantization_config", "pooler_config"),
    ),
    "name files, repositories or credentials": (
        *("model", "model_weights", "tokenizer", "hf_config_path", "hf_token", "revision", "code_revision"),
        *("tokenizer_revision", "download_dir", "allowed_local_media_path", "allowed_media_domains", "log_config_file"),
        *("mm_encoder_fp8_scale_path", "mm_encoder_fp8_scale_save_path", "default_mm_loras", "generation_config"),
        *("speculative_config", "spec_model", "profiler_config", "ignore_patterns", "pt_load_map_location"),
    ),
    "open connections or place processes": (
        *("master_addr", "master_port", "nnodes", "node_rank", "data_parallel_address", "data_parallel_rpc_port"),
        *("data_parallel_size", "data_parallel_backend", "pipeline_parallel_size", "device_ids"),
        *("kv_transfer_config", "kv_events_config", "ec_transfer_config", "weight_transfer_config"),
        *("otlp_traces_endpoint", "numa_bind_cpus"),
    ),
    "are what the stage server relies on": (
        *("async_scheduling", "scheduling_policy", "enable_chunked_prefill", "structured_outputs_config"),
        *("skip_tokenizer_init", "language_model_only", "limit_mm_per_prompt", "mm_processor_kwargs", "seed"),
        *("enable_prompt_embeds", "tokens_only", "stream_interval", "disable_log_stats", "enable_sleep_mode"),
    ),
    "have fields of their own": (
        *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "dtype", "quantization", "kv_cache_dtype"),
        *("kv_cache_memory_bytes", "gpu_memory_utilization", "enforce_eager", "enable_prefix_caching"),
        *("mm_processor_cache_gb", "load_format", "reasoning_parser", "block_size", "tensor_parallel_size"),
    ),
}
"""Arguments of vLLM that are refused, by the reason. Every other argument that is not in ALLOWED is refused too."""

_WHOLE: Final = re.compile(r"[0-9]{1,9}")
_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def parse_extra_arg(name: str, value: int | str) -> int | float | bool | str:
    """Returns the value of an argument as vLLM takes it. Raises ValueError, which names the argument and the remedy."""
    text = str(value)
    if name in WHOLE and _WHOLE.fullmatch(text):
        return int(text)
    if name in NUMBERS and _NUMBER.fullmatch(text):
        return float(text)
    if name in SWITCHES and text in ("true", "false"):
        return text == "true"
    if name in CHOICES:
        return text
    if name not in ALLOWED:
        why = next((reason for reason, names in DENIED.items() if name in names), "are not in the list")
        raise ValueError(f"{name} is refused, with others that {why}; allowed are {', '.join(ALLOWED)}")
    wanted = '"true" or "false", in quotes' if name in SWITCHES else "a number" if name in NUMBERS else "a whole number"
    raise ValueError(f"{name} is {text!r}, but must be {wanted}")


def _check(given: dict[str, int | str]) -> dict[str, int | str]:
    for name, value in given.items():
        parse_extra_arg(name, value)
    return given


_Name = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=EXTRA_NAME_PATTERN)]
_Value = (
    Annotated[int, Field(ge=0, le=999_999_999)]
    | Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=EXTRA_VALUE_PATTERN)]
)
ExtraEngineArgs = Annotated[dict[_Name, _Value], Field(max_length=16), AfterValidator(_check)]
"""Arguments by vLLM's names, with checked values."""
