"""GET /v1/models, /v1/models/{id}, /v1/audio/voices."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Query, Request

from omni_gateway.api.context import Gateway, gateway_of
from omni_gateway.entries.pipelines import ServedPipeline, find_pipeline, model_ids
from omni_gateway.errors import GatewayError, ModelNotFoundError
from omni_gateway.openai.voices import list_aliases

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """Lists the served pipelines that are ready; each alias is a model of its own, as OpenAI's clients expect."""
    pipelines = gateway_of(request).pipelines.list_pipelines()
    ids = model_ids(pipelines)
    data = [_describe(key, pipeline) for key, pipeline in ids.items() if pipeline.ready]
    aliases = {alias: key for key, one in reversed(ids.items()) if one.ready for alias in one.aliases}
    data += [{**_describe(alias, ids[key]), "root": key} for alias, key in aliases.items() if alias not in ids]
    return {"object": "list", "data": data}


@router.get("/v1/models/{model:path}")
async def get_model(request: Request, model: str) -> dict[str, Any]:
    """Describes one model, given its id or an alias. Modalities, voices and stages come from its entry stage."""
    gateway = gateway_of(request)
    key, pipeline = find_pipeline(gateway.pipelines.list_pipelines(), model)
    facts = await gateway.entries.facts(pipeline)
    return {
        **_describe(key, pipeline),
        "max_model_len": facts.max_model_len,
        "modalities": list(facts.modalities),
        "voices": list(facts.voices),
        "stages": list(facts.stages),
    }


@router.get("/v1/audio/voices")
async def list_voices(request: Request, model: str | None = Query(default=None)) -> dict[str, Any]:
    """Lists the voices of all ready models that speak, or of the given model."""
    gateway = gateway_of(request)
    pipelines = gateway.pipelines.list_pipelines()
    if model is not None:
        key, pipeline = find_pipeline(pipelines, model)
        return _list_voices(await _voices(gateway, key, pipeline))
    data: list[dict[str, Any]] = []
    for key, pipeline in model_ids(pipelines).items():
        try:
            data += await _voices(gateway, key, pipeline) if pipeline.ready else []
        except ModelNotFoundError:
            raise
        except GatewayError:
            continue  # a pipeline that cannot be reached is left out
    return _list_voices(data)


def _list_voices(data: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the answer with these voices. `voices` repeats them for Open WebUI and SillyTavern, which read it."""
    return {"object": "list", "data": data, "voices": data}


def _describe(key: str, pipeline: ServedPipeline) -> dict[str, Any]:
    return {"id": key, "object": "model", "created": pipeline.created, "owned_by": pipeline.namespace or "omnipipeline"}


async def _voices(gateway: Gateway, key: str, pipeline: ServedPipeline) -> list[dict[str, Any]]:
    voices = (await gateway.entries.facts(pipeline)).voices
    aliases = list_aliases(pipeline.voice_aliases or gateway.settings.voice_aliases, voices)
    return [
        {"id": voice, "object": "voice", "name": voice, "model": key, "aliases": aliases.get(voice, [])}
        for voice in voices
    ]
