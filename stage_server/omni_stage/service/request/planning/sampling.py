"""Converts a request's sampling parameters to plain data. Errors name the path of the wrong parameter. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from omni_proto.stage.v1 import sampling_pb2
from omni_proto.stage_config import SamplingDefaults
from omni_stage.errors import InvalidRequestError

_REPEATED = ("stop_token_ids", "stop")
_FLOATS = frozenset(
    ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "guidance_scale")
)
_ALIASES = {info.alias or name: name for name, info in SamplingDefaults.model_fields.items()}


def sampling_from_proto(message: sampling_pb2.SamplingParams, field: str) -> SamplingDefaults:
    """Returns the sampling parameters that a request sets.

    Raises InvalidRequestError, whose field is the path of the wrong parameter: `field` plus the parameter's name.
    """
    data: dict[str, object] = {}
    for descriptor, value in message.ListFields():
        if descriptor.name in _REPEATED:
            data[descriptor.name] = list(value)
        elif descriptor.name in _FLOATS:
            # The message holds 32-bit floats. Seven digits restore the number that the caller wrote (0.9, not
            # 0.89999998).
            data[descriptor.name] = float(format(value, ".7g"))
        else:
            data[descriptor.name] = value
    try:
        return SamplingDefaults.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = _ALIASES.get(str(first["loc"][0]), str(first["loc"][0])) if first["loc"] else ""
        raise InvalidRequestError(f"{name}: {first['msg']}", field=f"{field}.{name}") from None


def check_sampling_names(sampling: Mapping[str, sampling_pb2.SamplingParams], stages: Sequence[str]) -> None:
    """Check every stage's parameters, so that a wrong one fails before any stage works. Raises InvalidRequestError."""
    for name in sorted(sampling):
        if name not in stages:
            listed = ", ".join(stages)
            # The name is the caller's text, so the message does not repeat it.
            raise InvalidRequestError(
                f"start.sampling names a stage that does not exist; known stages: {listed}",
                field="start.sampling",
                limit=listed,
            )
        sampling_from_proto(sampling[name], f"start.sampling[{name}]")
