"""Which pipeline serves the model that a request names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omni_gateway.__main__ import parse_endpoint
from omni_gateway.entries.pipelines import ServedPipeline, find_pipeline, model_ids
from omni_gateway.errors import ModelNotFoundError, ModelNotReadyError
from omni_gateway.settings import GatewaySettings

QWEN = ServedPipeline("qwen", "grpc://a:1", namespace="models", aliases=("tts-1", "gpt-4o-audio"))
OTHER = ServedPipeline("other", "grpc://b:1", namespace="models")
TWIN = ServedPipeline("qwen", "grpc://c:1", namespace="team", has_name=False)
AWAY = ServedPipeline("away", "grpc://d:1", ready=False, accepts=False)
PARTLY = ServedPipeline("partly", "grpc://e:1", ready=False)


@pytest.mark.parametrize(
    ("served", "ids"),
    [((), []), ((QWEN, OTHER), ["qwen", "other"]), ((QWEN, OTHER, TWIN), ["qwen", "other", "team/qwen"])],
)
def test_a_pipeline_without_its_name_gets_its_namespace(served: tuple[ServedPipeline, ...], ids: list[str]) -> None:
    assert list(model_ids(served)) == ids


@pytest.mark.parametrize(
    ("served", "model", "found"),
    [
        ((QWEN, OTHER), "qwen", QWEN),
        ((QWEN, OTHER), "models/qwen", QWEN),
        ((QWEN, OTHER), "gpt-4o-audio", QWEN),
        ((QWEN, TWIN), "team/qwen", TWIN),
        ((QWEN, OTHER), "tts-1", QWEN),
        ((TWIN, QWEN), "qwen", QWEN),
        ((replace(OTHER, aliases=("qwen",)), QWEN), "qwen", QWEN),
        ((PARTLY,), "partly", PARTLY),
    ],
)
def test_a_model_is_found(served: tuple[ServedPipeline, ...], model: str, found: ServedPipeline) -> None:
    assert find_pipeline(served, model)[1] is found


@pytest.mark.parametrize(
    ("served", "model", "error"),
    [
        ((), "qwen", ModelNotFoundError),
        ((TWIN,), "qwen", ModelNotFoundError),
        ((QWEN, OTHER), "models/tts-1", ModelNotFoundError),
        ((QWEN, AWAY), "away", ModelNotReadyError),
    ],
)
def test_a_model_is_refused(served: tuple[ServedPipeline, ...], model: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        find_pipeline(served, model)


@pytest.mark.parametrize("ca", [None, "/etc/ca.crt"])
def test_an_endpoint_of_the_command_line_is_a_pipeline(ca: str | None) -> None:
    settings = GatewaySettings(entry_ca=ca, model_aliases={"tts-1": "omni", "tts-2": "other"})
    plain = parse_endpoint("omni=grpc://a:1", settings)
    assert (plain.name, plain.endpoint, plain.aliases, plain.tls) == ("omni", "grpc://a:1", ("tts-1",), None)
    secure = parse_endpoint("omni=grpcs://a:1", settings).tls
    assert (secure and secure.ca) == ca
    with pytest.raises(ValueError, match="NAME=grpc"):
        parse_endpoint("http://a:1", settings)
