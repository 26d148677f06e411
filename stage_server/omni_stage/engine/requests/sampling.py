"""Sampling: precedence of its sources, what a stage supports, and the lowering to vLLM's SamplingParams.

Precedence: request > the stage's defaultSampling > component > generation_config.json > vLLM's neutral value. Pure
functions; vLLM is imported only to build SamplingParams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omni_proto.pipeline.components import ComponentFacts, refuse_sampling
from omni_proto.stage_config import SamplingDefaults
from omni_stage.errors import InvalidRequestError

if TYPE_CHECKING:
    from vllm import SamplingParams


def resolve_sampling(
    request: SamplingDefaults | None,
    *,
    seed: int | None,
    config_default: SamplingDefaults,
    component_default: SamplingDefaults,
) -> SamplingDefaults:
    """Returns the request's sampling with the defaults of stage and component applied. A parameter that is still None
    has the model's own default.

    `seed` is the seed of the whole request (Start.seed). It overrides the defaults, and a seed in `request` overrides
    `seed`.
    """
    layers = [request, SamplingDefaults(seed=seed), config_default, component_default]
    resolved: dict[str, Any] = {}
    for layer in layers:
        for name, value in _set_fields(layer).items():
            resolved.setdefault(name, value)
    return SamplingDefaults(**resolved)


def check_stage_sampling(
    sampling: SamplingDefaults, facts: ComponentFacts, *, is_streamed: bool, field: str = ""
) -> None:
    """Refuse a parameter that the stage's component does not support.

    `is_streamed`: whether the stage starts before its input is complete. `field` is the path of the sampling in the
    request. Raises InvalidRequestError.
    """
    for objection in refuse_sampling(facts, sampling, is_streamed=is_streamed):
        raise InvalidRequestError(
            f"{objection.field} {objection.why}; {objection.remedy}",
            field=_path(field, objection.field),
            limit=objection.limit,
        )


def sampling_kwargs(
    sampling: SamplingDefaults,
    *,
    generation_defaults: Mapping[str, Any],
    max_model_len: int,
    prompt_len: int | None,
    writes_text: bool,
) -> dict[str, Any]:
    """Returns keyword arguments of vLLM's SamplingParams for a resolved sampling of an autoregressive stage.

    max_tokens is at most max_model_len - prompt_len. If the prompt's length is not known yet (media), vLLM itself stops
    at max_model_len. min_tokens is at most max_tokens.
    """
    kwargs: dict[str, Any] = {**generation_defaults, **_set_fields(sampling)}
    if kwargs.get("top_k") == -1:
        kwargs["top_k"] = 0
    room = max(1, max_model_len - (prompt_len or 0))
    max_tokens = kwargs.get("max_tokens")
    if max_tokens is not None or prompt_len is not None:
        kwargs["max_tokens"] = min(max_tokens or room, room)
    else:
        # The default of SamplingParams is 16; None means as many as fit.
        kwargs["max_tokens"] = None
    if kwargs["max_tokens"] is not None and kwargs.get("min_tokens"):
        kwargs["min_tokens"] = min(kwargs["min_tokens"], kwargs["max_tokens"])
    kwargs["detokenize"] = writes_text
    return kwargs


def lower_sampling(
    sampling: SamplingDefaults,
    *,
    generation_defaults: Mapping[str, Any],
    max_model_len: int,
    prompt_len: int | None,
    writes_text: bool,
    stop_token_ids: Sequence[int] = (),
    further: Mapping[str, Any] | None = None,
) -> SamplingParams:
    """Returns vLLM's SamplingParams; see sampling_kwargs. Each output holds only what is new since the previous one.

    `stop_token_ids`: ids that end the output, in addition to those of the request. `further`: parameters without a
    field in SamplingDefaults, and those that override it.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kwargs = sampling_kwargs(
        sampling,
        generation_defaults=generation_defaults,
        max_model_len=max_model_len,
        prompt_len=prompt_len,
        writes_text=writes_text,
    )
    if stop_token_ids:
        kwargs["stop_token_ids"] = [*(kwargs.get("stop_token_ids") or ()), *stop_token_ids]
    return SamplingParams(output_kind=RequestOutputKind.DELTA, **{**kwargs, **(further or {})})


def _set_fields(sampling: SamplingDefaults | None) -> dict[str, Any]:
    return {} if sampling is None else sampling.model_dump(exclude_none=True)


def _path(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name
