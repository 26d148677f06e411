"""The settings of a runner in `vllm_config.additional_config["omni"]`: the one place that parses and checks them.

The engine builder writes a plain mapping there, because vLLM hashes the mapping as JSON and pickles it to its workers;
every worker parses it once, when it builds its runner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from omni_stage.errors import ConfigurationError

ADDITIONAL_CONFIG_KEY = "omni"
"""Key of the settings in vLLM's `additional_config`."""

_FIELD = f"additional_config.{ADDITIONAL_CONFIG_KEY}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OmniRunnerConfig:
    """Settings of the autoregressive runner. Every instance is valid."""

    capture_rows: bool = False
    """Whether requests may ask for the rows that the model publishes (hooks.py)."""
    capture_mrope: bool = False
    """Whether the prompt's M-RoPE positions and delta are sent with a request's first rows."""
    rows_cache_bytes: int = 0
    """Maximum number of bytes of published rows that the scheduler keeps for reused prefixes. Prefix caching needs it,
    and it has no effect without prefix caching. 0: none are kept."""
    hash_inputs: bool = False
    """Whether requests bring digests of their input rows, so that prefixes can be cached although prompts consist of
    placeholders (scheduling/input_hashes.py). For models that publish no rows of positions."""

    def __post_init__(self) -> None:
        """Refuse wrong types and combinations. Raises ConfigurationError."""
        for name in ("capture_rows", "capture_mrope", "hash_inputs"):
            if not isinstance(getattr(self, name), bool):
                raise _error(name, "must be true or false")
        if self.capture_mrope and not self.capture_rows:
            raise _error("capture_mrope", "needs capture_rows: positions travel with the first rows")
        size = self.rows_cache_bytes
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise _error("rows_cache_bytes", "must be a number of bytes, 0 or more")
        if size and not self.capture_rows:
            raise _error("rows_cache_bytes", "needs capture_rows: without it there are no rows to keep")

    @classmethod
    def from_mapping(cls, values: object) -> Self:
        """Returns the settings in a mapping, with defaults for those it does not name. Raises ConfigurationError."""
        if not isinstance(values, Mapping):
            raise ConfigurationError(f"{_FIELD} must be a mapping", field=_FIELD)
        known = {item.name for item in fields(cls)}
        unknown = sorted(str(name) for name in values if name not in known)
        if unknown:
            raise ConfigurationError(
                f"{_FIELD} has unknown settings: {', '.join(unknown)}; known are {', '.join(sorted(known))}",
                field=f"{_FIELD}.{unknown[0]}",
            )
        return cls(**{str(name): value for name, value in values.items()})

    @classmethod
    def from_vllm_config(cls, vllm_config: Any) -> Self:
        """Returns the settings of an engine; the defaults if it has none. Raises ConfigurationError."""
        additional = vllm_config.additional_config
        if not isinstance(additional, Mapping) or ADDITIONAL_CONFIG_KEY not in additional:
            return cls()
        return cls.from_mapping(additional[ADDITIONAL_CONFIG_KEY])


def check_capture(config: OmniRunnerConfig, vllm_config: Any, *, uses_mrope: bool) -> None:
    """Refuse engine settings under which captured rows would be missing or wrong. Raises ConfigurationError."""
    if not config.capture_rows:
        return
    problems = {
        "enable_prefix_caching": (
            vllm_config.cache_config.enable_prefix_caching and not (config.rows_cache_bytes or config.hash_inputs),
            "cached positions are not computed, so they give no rows; set it to false, or set rows_cache_bytes",
        ),
        "kv_transfer_config": (
            vllm_config.kv_transfer_config is not None,
            "positions that another engine computed give no rows here; remove it",
        ),
        "speculative_config": (
            vllm_config.speculative_config is not None,
            "rows of rejected draft tokens would be sent; remove it",
        ),
        "capture_mrope": (
            config.capture_mrope and not uses_mrope,
            "this model has no M-RoPE positions; set it to false",
        ),
    }
    for name, (present, remedy) in problems.items():
        if present:
            raise ConfigurationError(f"{name} cannot be combined with capture of rows: {remedy}", field=name)


def check_published(vllm_config: Any) -> None:
    """Refuse engine settings under which a model cannot publish rows of its own. Raises ConfigurationError."""
    if vllm_config.model_config.enable_prompt_embeds:
        raise ConfigurationError(
            "enable_prompt_embeds cannot be combined with this model's rows, which are made of token ids; set it to "
            "false",
            field="enable_prompt_embeds",
        )
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise ConfigurationError(
            "pipeline_parallel_size cannot be combined with this model's rows: the rank with the hidden states has no "
            "input embedding; set it to 1",
            field="pipeline_parallel_size",
        )


def _error(name: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"{_FIELD}.{name} {problem}", field=f"{_FIELD}.{name}")
