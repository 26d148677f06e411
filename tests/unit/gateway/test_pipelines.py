"""Which pipeline a request's model means."""

from __future__ import annotations

import pytest

from omni_gateway.errors import ModelNotFoundError, ModelNotReadyError
from omni_gateway.pipelines import ServedPipeline, find_pipeline, model_ids

QWEN = ServedPipeline("qwen", "grpc://a:1", namespace="models", aliases=("tts-1", "gpt-4o-audio"))
OTHER = ServedPipeline("other", "grpc://b:1", namespace="models", aliases=("tts-1",))
TWIN = ServedPipeline("qwen", "grpc://c:1", namespace="team")
AWAY = ServedPipeline("away", "grpc://d:1", ready=False)


@pytest.mark.parametrize(
    ("served", "ids"),
    [
        ((), []),
        ((QWEN, OTHER), ["qwen", "other"]),
        ((QWEN, OTHER, TWIN), ["models/qwen", "other", "team/qwen"]),
    ],
)
def test_names_that_clash_get_their_namespace(served: tuple[ServedPipeline, ...], ids: list[str]) -> None:
    assert list(model_ids(served)) == ids


@pytest.mark.parametrize(
    ("served", "model", "found"),
    [
        ((QWEN, OTHER), "qwen", QWEN),
        ((QWEN, OTHER), "models/qwen", QWEN),
        ((QWEN, OTHER), "gpt-4o-audio", QWEN),
        ((QWEN, TWIN), "team/qwen", TWIN),
        ((OTHER, TWIN), "tts-1", OTHER),
    ],
)
def test_a_model_is_found(served: tuple[ServedPipeline, ...], model: str, found: ServedPipeline) -> None:
    assert find_pipeline(served, model)[1] is found


@pytest.mark.parametrize(
    ("served", "model", "error"),
    [
        ((), "qwen", ModelNotFoundError),
        ((QWEN, TWIN), "qwen", ModelNotFoundError),
        ((QWEN, OTHER), "tts-1", ModelNotFoundError),
        ((QWEN, AWAY), "away", ModelNotReadyError),
    ],
)
def test_a_model_is_refused(served: tuple[ServedPipeline, ...], model: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        find_pipeline(served, model)
