"""What a runner reads of `vllm_config.additional_config["omni"]`: the one place that parses and checks it.

The engine builder writes a plain mapping there, because vLLM hashes the mapping as JSON and pickles it to its workers;
every worker parses it once, when it builds its runner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

from omni_stage.errors import ConfigurationError

CaptureRows = Literal["none", "hidden", "hidden_plus_embedding"]
"""Which rows leave an autoregressive stage: none; the last hidden state (normed, what compute_logits gets); or that
plus the input embedding of the token at the same position."""

ADDITIONAL_CONFIG_KEY = "omni"
"""Where the settings sit in vLLM's `additional_config`."""

_FIELD = f"additional_config.{ADDITIONAL_CONFIG_KEY}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OmniRunnerConfig:
    """Settings of the autoregressive runner. An instance that exists is valid."""

    capture_rows: CaptureRows = "none"
    no_embedding_token_ids: tuple[int, ...] = ()
    """Placeholders of images and sound: their positions contribute the hidden state only."""
    capture_mrope: bool = False
    """Whether a request's first rows bring the prompt's M-RoPE positions and delta along."""

    def __post_init__(self) -> None:
        """Refuse wrong types and combinations. Raises ConfigurationError."""
        if self.capture_rows not in get_args(CaptureRows):
            raise _error("capture_rows", f"must be one of {', '.join(get_args(CaptureRows))}")
        if not isinstance(self.no_embedding_token_ids, tuple) or not all(
            isinstance(token, int) and not isinstance(token, bool) and token >= 0
            for token in self.no_embedding_token_ids
        ):
            raise _error("no_embedding_token_ids", "must be a list of token ids of at least 0")
        if not isinstance(self.capture_mrope, bool):
            raise _error("capture_mrope", "must be true or false")
        if self.capture_rows == "none" and self.capture_mrope:
            raise _error("capture_mrope", "needs capture_rows: positions travel with the first rows")
        if self.capture_rows != "hidden_plus_embedding" and self.no_embedding_token_ids:
            raise _error("no_embedding_token_ids", "only means something with capture_rows: hidden_plus_embedding")

    @property
    def captures(self) -> bool:
        """Whether any request may ask for rows."""
        return self.capture_rows != "none"

    @classmethod
    def from_mapping(cls, values: object) -> Self:
        """Settings of a mapping; what it does not name keeps its default. Raises ConfigurationError."""
        if not isinstance(values, Mapping):
            raise ConfigurationError(f"{_FIELD} must be a mapping", field=_FIELD)
        known = {item.name for item in fields(cls)}
        unknown = sorted(str(name) for name in values if name not in known)
        if unknown:
            raise ConfigurationError(
                f"{_FIELD} has unknown settings: {', '.join(unknown)}; known are {', '.join(sorted(known))}",
                field=f"{_FIELD}.{unknown[0]}",
            )
        settings = {str(name): value for name, value in values.items()}
        tokens = settings.get("no_embedding_token_ids")
        if isinstance(tokens, list):
            settings["no_embedding_token_ids"] = tuple(tokens)
        return cls(**settings)

    @classmethod
    def from_vllm_config(cls, vllm_config: Any) -> Self:
        """Settings of an engine; the defaults where it has none. Raises ConfigurationError."""
        additional = vllm_config.additional_config
        if not isinstance(additional, Mapping) or ADDITIONAL_CONFIG_KEY not in additional:
            return cls()
        return cls.from_mapping(additional[ADDITIONAL_CONFIG_KEY])


def check_capture(config: OmniRunnerConfig, vllm_config: Any, *, uses_mrope: bool) -> None:
    """Refuse engine settings under which captured rows would be missing or wrong. Raises ConfigurationError."""
    if not config.captures:
        return
    with_embedding = config.capture_rows == "hidden_plus_embedding"
    problems = {
        "enable_prefix_caching": (
            vllm_config.cache_config.enable_prefix_caching,
            "cached positions are not computed, so they give no rows; set it to false",
        ),
        "kv_transfer_config": (
            vllm_config.kv_transfer_config is not None,
            "positions computed elsewhere give no rows here; remove it",
        ),
        "speculative_config": (
            vllm_config.speculative_config is not None,
            "rows of rejected draft tokens would be sent; remove it",
        ),
        "enable_prompt_embeds": (
            with_embedding and vllm_config.model_config.enable_prompt_embeds,
            "rows with the input embedding are made of token ids; set it to false",
        ),
        "pipeline_parallel_size": (
            with_embedding and vllm_config.parallel_config.pipeline_parallel_size > 1,
            "the rank with the hidden states has no input embedding; set it to 1",
        ),
        "capture_mrope": (
            config.capture_mrope and not uses_mrope,
            "this model has no M-RoPE positions; set it to false",
        ),
    }
    for name, (present, remedy) in problems.items():
        if present:
            raise ConfigurationError(f"{name} cannot be combined with capture of rows: {remedy}", field=name)


def _error(name: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"{_FIELD}.{name} {problem}", field=f"{_FIELD}.{name}")
