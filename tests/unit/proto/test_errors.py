"""Errors survive pickling: a process pool pickles the errors of its workers."""

from __future__ import annotations

import pickle

import grpc
import pytest

from omni_proto.client import OmniRequestError, ProtocolError
from omni_proto.errors import ArgumentError, CorruptTensorError, OmniProtoError
from omni_proto.pipeline import PipelineError
from omni_proto.pipeline.problems import Problem


@pytest.mark.parametrize(
    "error",
    [
        ArgumentError("timeout must be positive"),
        CorruptTensorError.of("thinker_hidden", "rows 0 to 4 are damaged", limit="4 rows"),
        PipelineError("p.yaml", [Problem("spec", "is missing"), Problem("kind", "is missing")]),
        OmniRequestError(grpc.StatusCode.UNAVAILABLE, "draining", stage="talker", retry_after_s=2.5),
        ProtocolError("nothing came before accepted"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_pickled_error_is_the_same(error: OmniProtoError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copy), str(copy), copy.args, vars(copy)) == (type(error), str(error), error.args, vars(error))
