"""Sampling parameters of a request: a value that is out of bounds is refused with the path of its field."""

from __future__ import annotations

import pytest

from omni_proto.stage.v1 import sampling_pb2
from omni_stage.errors import InvalidRequestError
from omni_stage.service.request.planning.plan import sampling_from_proto


@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.5}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_out_of_bounds_is_refused_by_its_path(wrong: dict[str, float], parameter: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        sampling_from_proto(sampling_pb2.SamplingParams(**wrong), "start.sampling[thinker]")
    assert caught.value.details.field == f"start.sampling[thinker].{parameter}"


def test_decimals_come_back_as_they_were_written() -> None:
    """A float32 on the wire is read as the decimal number that the client wrote."""
    assert sampling_from_proto(sampling_pb2.SamplingParams(temperature=0.9), "x").temperature == 0.9
