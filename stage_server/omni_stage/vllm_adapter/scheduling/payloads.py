"""Payloads: the scheduler decodes what a new request carries, and sends it to the worker as OmniNewRequestData.

vLLM 0.32 builds NewRequestData by name inside Scheduler.schedule (`v1/core/sched/scheduler.py`, "new_reqs_data"), so it
cannot build a subclass instead. `upgrade` turns its NewRequestData into the subclass afterwards.
`vllm.v1.core.sched.output.NewRequestData` is a private interface.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.request import Request

from omni_stage.errors import ConfigurationError, InvalidTensorError, OmniStageError
from omni_stage.payloads import DEFAULT_LIMITS, OMNI_PAYLOAD_KEY, AdditionalInformationPayload, PayloadLimits
from omni_stage.vllm_adapter.wiring.names import INVALID_PAYLOAD, PAYLOAD_LIMITS

logger = logging.getLogger(__name__)


@dataclass
class OmniNewRequestData(NewRequestData):
    """NewRequestData and the request's decoded payload.

    Prompt embeddings need no field of their own: NewRequestData.prompt_embeds carries them as a tensor, without a copy.
    """

    additional_information: AdditionalInformationPayload | None = None
    """Decoded and checked; None when the request has none, or when it could not be read."""
    payload_error: str = ""
    """Why the payload could not be read. The scheduler ends the request after this step; its output is dropped."""

    @classmethod
    def upgrade(
        cls,
        data: NewRequestData,
        additional_information: AdditionalInformationPayload | None = None,
        payload_error: str = "",
    ) -> OmniNewRequestData:
        """Returns the same data with the payload. Field values are shared, not copied."""
        base = {item.name: getattr(data, item.name) for item in fields(NewRequestData)}
        return cls(**base, additional_information=additional_information, payload_error=payload_error)

    @classmethod
    def from_request(
        cls, request: Request, block_ids: tuple[list[int], ...], *args: Any, limits: PayloadLimits, **kwargs: Any
    ) -> OmniNewRequestData:
        """Returns the data of a request, payload included. Further arguments go to NewRequestData.from_request.

        For schedulers that build this data themselves. Our scheduler lets vLLM build NewRequestData, and upgrades it.
        Example: `OmniNewRequestData.from_request(request, ([0, 1],), limits=DEFAULT_LIMITS)`.
        Raises OmniStageError if the payload cannot be read.
        """
        data = NewRequestData.from_request(request, block_ids, *args, **kwargs)
        raw = find_raw_payload(request.sampling_params, request.pooling_params)
        return cls.upgrade(data, None if raw is None else decode_payload(raw, limits))


def find_raw_payload(sampling_params: Any, pooling_params: Any) -> object | None:
    """Returns the value under OMNI_PAYLOAD_KEY in the request's parameters; None if the request has no payload.

    Both are vLLM's types, and at least one of them is None.
    """
    extra = getattr(sampling_params, "extra_args", None) or getattr(pooling_params, "extra_kwargs", None)
    return extra.get(OMNI_PAYLOAD_KEY) if isinstance(extra, Mapping) else None


def decode_payload(raw: object, limits: PayloadLimits) -> AdditionalInformationPayload:
    """Returns the payload that `find_raw_payload` found, decoded and checked.

    Raises InvalidTensorError, NonFiniteTensorError, CorruptTensorError.
    """
    if not isinstance(raw, bytes | bytearray | memoryview):
        raise InvalidTensorError(
            f"additional_information: {OMNI_PAYLOAD_KEY} must be the bytes of AdditionalInformationPayload.to_bytes()",
            field="additional_information",
        )
    return AdditionalInformationPayload.from_bytes(bytes(raw), limits)


def read_limits(additional_config: object) -> PayloadLimits:
    """Returns the limits of payloads in vLLM's additional_config. Raises ConfigurationError if they are wrong."""
    values = additional_config.get(PAYLOAD_LIMITS) if isinstance(additional_config, dict) else None
    if values is None:
        return DEFAULT_LIMITS
    if not isinstance(values, dict):
        raise ConfigurationError(f"additional_config.{PAYLOAD_LIMITS} must be a mapping", field=PAYLOAD_LIMITS)
    return PayloadLimits.from_mapping(values)


class Payloads:
    """Reads the payloads of a step's new requests.

    A request whose payload cannot be read stays in the step that scheduled it, and ends after that step. Taking it out
    of the step would be wrong: by then vLLM has entered its KV blocks into the prefix cache and its images into the
    encoder cache, and other requests would hit entries that were never computed.
    """

    def __init__(self, additional_config: object) -> None:
        # The front end checked every value before it admitted the request: here a checksum is enough.
        self._limits = read_limits(additional_config).already_checked()

    def after_schedule(self, new_requests: list[NewRequestData]) -> dict[str, str]:
        """Replace the data of requests with a payload by OmniNewRequestData.

        Returns the stop reasons of the requests whose payload cannot be read, by id.
        """
        unreadable: dict[str, str] = {}
        for index, data in enumerate(new_requests):
            # Read the payload from the data, not in add_request: each part of a resumable request brings its own.
            raw = find_raw_payload(data.sampling_params, data.pooling_params)
            if raw is None:
                continue
            try:
                new_requests[index] = OmniNewRequestData.upgrade(data, decode_payload(raw, self._limits))
                continue
            except OmniStageError as error:
                logger.warning("request %s ends, its payload cannot be read: %s", data.req_id, error)
                message = str(error)
            except Exception:
                # One request must not take the engine down, whatever is wrong with it.
                logger.exception("request %s ends, reading its payload failed", data.req_id)
                message = "internal error while reading the payload"
            new_requests[index] = OmniNewRequestData.upgrade(data, payload_error=message)
            unreadable[data.req_id] = f"{INVALID_PAYLOAD}: {message}"
        return unreadable
