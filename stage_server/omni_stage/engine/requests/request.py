"""OmniEngineCoreRequest: one request to an engine, validated, and lowered to vLLM's prompt and parameters.

vLLM's own EngineCoreRequest cannot be extended: the decoder in the engine's process knows one fixed type, and vLLM's
Request drops further fields. So OmniEngineCoreRequest is a plain object outside the engine. Its method `lower` puts the
payload, as bytes, into the parameters' field for extra arguments (`extra_args` or `extra_kwargs`), which vLLM passes
unchanged to the scheduler and the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import torch
from vllm.inputs import TokensPrompt
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import RepetitionDetectionParams, SamplingParams

from omni_stage.engine.requests.conflicts import EngineTraits, Feature, check_conflicts
from omni_stage.errors import (
    InvalidRequestError,
    InvalidTensorError,
    NonFiniteTensorError,
    PromptTooLongError,
    RequestTooLargeError,
)
from omni_stage.models.component import EngineInput
from omni_stage.payloads import (
    OMNI_PAYLOAD_KEY,
    OMNI_ROWS_KEY,
    AdditionalInformationPayload,
    PromptEmbedsPayload,
)
from omni_stage.payloads.input_digests import OMNI_DIGESTS_KEY
from omni_stage.vllm_adapter.core.interface import Params

PLACEHOLDER_PROMPT: Final = (0,)
"""Prompt of a diffusion request that has none. vLLM schedules only requests with at least one token, and the model
ignores this token."""

_PROMPT_KEYS: Final = frozenset(
    {"prompt", "prompt_token_ids", "prompt_embeds", "multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs"}
    | {"additional_information"}
)


class OmniTokensPrompt(TokensPrompt, total=False):  # type: ignore[misc, call-arg]  # vLLM counts as untyped
    """vLLM's TokensPrompt with the tensors and lists that travel with it to the engine's process.

    For code that creates an OmniEngineCoreRequest itself. Stages do not use it: their components return prompt and
    payload as separate fields of an EngineInput.
    """

    additional_information: AdditionalInformationPayload
    """Tensors and lists for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OmniEngineCoreRequest:
    """One request to an engine. `validate` checks it, `lower` returns vLLM's prompt and parameters."""

    request_id: str
    input: EngineInput
    params: Params
    want_rows: bool = False
    """Whether the runner returns the rows that it captures."""
    cache_salt: str = ""
    """Only requests with the same salt share cached prefixes; requests with an empty salt share theirs."""

    @property
    def is_one_shot(self) -> bool:
        """Whether a diffusion stage or a decoder runs the request."""
        return isinstance(self.params, PoolingParams)

    def validate(self, traits: EngineTraits) -> None:
        """Refuse a request that the engine cannot run or that would end the engine.

        Raises InvalidRequestError, InvalidTensorError, NonFiniteTensorError, PromptTooLongError, RequestTooLargeError.
        """
        self._check_form()
        self._check_prompt(traits)
        self._check_token_ids("suppress_token_ids", self.input.suppress_token_ids, traits)
        given = getattr(self.params, "stop_token_ids", None) or ()
        self._check_token_ids("stop_token_ids", (*self.input.stop_token_ids, *given), traits)
        self._check_payload(traits)
        check_conflicts(self.features(traits))

    def lower(self, traits: EngineTraits) -> tuple[dict[str, Any], Params]:
        """Validate the request, and return vLLM's prompt and parameters. All but media are copies.

        Raises what `validate` raises.
        """
        self.validate(traits)
        given = self.input
        prompt = {name: value for name, value in given.prompt.items() if name != "additional_information"}
        if given.prompt_embeds is not None:
            prompt = {"prompt_embeds": _cast_embeds(given.prompt_embeds.to_tensor(), traits.embeds_dtype)}
        elif self.is_one_shot and not prompt.get("prompt_token_ids"):
            prompt["prompt_token_ids"] = list(PLACEHOLDER_PROMPT)
        elif "prompt_token_ids" in prompt:
            # A copy: vLLM's output processor and scheduler both extend the list that they get.
            prompt["prompt_token_ids"] = list(prompt["prompt_token_ids"])
        if self.cache_salt:
            prompt["cache_salt"] = self.cache_salt
        extra = self._build_extra()
        if isinstance(self.params, PoolingParams):
            pooling = self.params.clone()
            pooling.extra_kwargs = extra or None
            return prompt, pooling
        sampling = self.params.clone()
        if given.stop_token_ids:
            stop_token_ids = sorted({*(sampling.stop_token_ids or ()), *given.stop_token_ids})
            # Construct a new object, because only the constructor derives further fields from the stop tokens.
            sampling = msgspec.structs.replace(sampling, stop_token_ids=stop_token_ids)
        if given.repeat_limit is not None:
            sampling.repetition_detection = RepetitionDetectionParams(
                max_pattern_size=1, min_pattern_size=1, min_count=given.repeat_limit
            )
        sampling.extra_args = extra or None
        if given.suppress_token_ids:
            banned = dict.fromkeys(given.suppress_token_ids, float("-inf"))
            sampling.logit_bias = {**(sampling.logit_bias or {}), **banned}
        return prompt, sampling

    def features(self, traits: EngineTraits) -> set[Feature]:
        """Returns the features of the request and its engine that may conflict."""
        sampling = self.params
        uses = {
            Feature.PROMPT_EMBEDS: self.input.prompt_embeds is not None,
            Feature.MULTIMODAL: bool(self.input.prompt.get("multi_modal_data")),
            Feature.POOLING: self.is_one_shot,
            Feature.CAPTURED_ROWS: self.want_rows,
            Feature.STREAM_FED: traits.stream_fed,
        }
        if isinstance(sampling, SamplingParams):
            output_penalties = sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
            uses |= {
                Feature.PENALTIES: output_penalties or sampling.repetition_penalty != 1,
                Feature.OUTPUT_PENALTIES: output_penalties,
                Feature.MULTIPLE_SAMPLES: sampling.n != 1,
                Feature.MIN_TOKENS: sampling.min_tokens > 0,
                Feature.STOP_STRINGS: bool(sampling.stop),
                Feature.IGNORE_EOS: sampling.ignore_eos,
                Feature.FORM: sampling.structured_outputs is not None,
                Feature.PROMPT_LOGPROBS: sampling.prompt_logprobs is not None,
            }
        return {feature for feature, used in uses.items() if used}

    def _check_form(self) -> None:
        if not self.request_id:
            raise InvalidRequestError("request_id must not be empty", field="request_id")
        if unknown := sorted(set(self.input.prompt) - _PROMPT_KEYS):
            raise InvalidRequestError(
                f"the prompt has {len(unknown)} unknown keys; known are {', '.join(sorted(_PROMPT_KEYS))}",
                field="prompt",
            )
        # vLLM reads handles of KV transfers and cache controls from these fields, so a caller must not set them.
        if getattr(self.params, "extra_args", None) or getattr(self.params, "extra_kwargs", None):
            raise InvalidRequestError(
                "extra_args and extra_kwargs belong to the stage; leave them out", field="extra_args"
            )

    def _check_prompt(self, traits: EngineTraits) -> None:
        prompt, embeds = self.input.prompt, self.input.prompt_embeds
        token_ids, text = prompt.get("prompt_token_ids"), prompt.get("prompt")
        if embeds is not None:
            if token_ids is not None or text is not None:
                raise InvalidRequestError("prompt_embeds take the place of text and token ids", field="prompt_embeds")
            self._check_embeds(embeds, traits)
        elif "prompt_embeds" in prompt:
            raise InvalidRequestError(
                "embeddings go into the request as a PromptEmbedsPayload, not into the prompt", field="prompt_embeds"
            )
        elif token_ids is not None:
            self._check_token_ids("prompt_token_ids", token_ids, traits)
            self._check_length(len(token_ids), "prompt_token_ids", traits)
        elif text is None and not self.is_one_shot:
            raise InvalidRequestError("the prompt needs text, token ids or embeddings", field="prompt")

    def _check_embeds(self, embeds: PromptEmbedsPayload, traits: EngineTraits) -> None:
        if traits.hidden_size is None:
            raise InvalidRequestError("this stage does not take prompt embeddings", field="prompt_embeds")
        embeds.check(traits.limits)
        rows, hidden_size = embeds.shape
        if hidden_size != traits.hidden_size:
            raise InvalidTensorError(
                f"prompt_embeds: rows have {hidden_size} values, the model takes {traits.hidden_size}",
                field="prompt_embeds",
                limit=traits.hidden_size,
            )
        self._check_length(rows, "prompt_embeds", traits)

    def _check_length(self, tokens: int, name: str, traits: EngineTraits) -> None:
        if tokens == 0 and not self.is_one_shot:
            raise InvalidRequestError(f"{name} must not be empty", field=name)
        # An autoregressive request needs space for one token of output.
        most = traits.max_model_len - (0 if self.is_one_shot else 1)
        if tokens > most:
            raise PromptTooLongError(
                f"the prompt has {tokens} tokens, at most {most} fit; shorten it",
                field=name,
                limit=f"{most} tokens",
                actual=f"{tokens} tokens",
            )

    @staticmethod
    def _check_token_ids(name: str, token_ids: Sequence[int], traits: EngineTraits) -> None:
        end = traits.vocab_size if traits.vocab_size is not None else 1 << 31
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < end:
                raise InvalidRequestError(
                    f"{name}: every id must be an integer of 0 to {end - 1}", field=name, limit=end
                )

    def _check_payload(self, traits: EngineTraits) -> None:
        payload = self._payload()
        if payload is None:
            return
        most = traits.limits.max_payload_bytes
        if payload.nbytes > most:
            raise RequestTooLargeError(
                f"additional_information: {payload.nbytes} bytes, at most {most} are allowed; shorten the input",
                field="additional_information",
                limit=f"{most} bytes",
            )
        payload.check(traits.limits)

    def _payload(self) -> AdditionalInformationPayload | None:
        inner, payload = self.input.prompt.get("additional_information"), self.input.additional_information
        if inner is None:
            return payload
        if payload is not None:
            raise InvalidRequestError(
                "additional_information is set in the request and in its prompt; set it once",
                field="additional_information",
            )
        if not isinstance(inner, AdditionalInformationPayload):
            raise InvalidRequestError(
                "additional_information of the prompt must be an AdditionalInformationPayload",
                field="additional_information",
            )
        return inner

    def _build_extra(self) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        payload = self._payload()
        if payload is not None:
            extra[OMNI_PAYLOAD_KEY] = payload.to_bytes()
        if self.input.input_digests:
            extra[OMNI_DIGESTS_KEY] = self.input.input_digests
        if self.want_rows:
            extra[OMNI_ROWS_KEY] = True
        return extra


def _cast_embeds(embeds: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Returns the embeddings in the engine's dtype. Raises NonFiniteTensorError if a value is beyond its range."""
    if dtype is None or embeds.dtype == dtype:
        return embeds
    cast = embeds.to(dtype)
    if dtype == torch.float16 and not bool(torch.isfinite(cast).all()):
        raise NonFiniteTensorError(
            "prompt_embeds: a value is beyond float16, the engine's dtype; scale the embeddings, or set "
            "engineArgs.dtype to bfloat16",
            field="prompt_embeds",
            limit="65504",
        )
    return cast
