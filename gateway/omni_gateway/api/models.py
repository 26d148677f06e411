"""GET /v1/models, /v1/models/{id}, /v1/audio/models, /v1/audio/voices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Query, Request

from omni_gateway.context import Gateway, gateway_of, pipelines_of
from omni_gateway.entries.connections import EntryFacts
from omni_gateway.entries.pipelines import ServedPipeline, find_pipeline, list_aliases, model_ids
from omni_gateway.errors import GatewayError, ModelNotReadyError

router = APIRouter(tags=["models"])


@router.head("/v1/models", include_in_schema=False)  # how some clients test whether the server is there
@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """Lists the served pipelines that are ready; each alias is a model of its own, as OpenAI's clients expect."""
    ids = model_ids(pipelines_of(request))
    return {"object": "list", "data": _list_models({key: one for key, one in ids.items() if one.ready}, ids)}


@router.head("/v1/models/{model:path}", include_in_schema=False)
@router.get("/v1/models/{model:path}")
async def get_model(request: Request, model: str) -> dict[str, Any]:
    """Describes one model, given its id or an alias. Modalities, voices and stages come from its entry stage, and stay
    known while the pipeline sleeps."""
    gateway = gateway_of(request)
    key, pipeline = find_pipeline(pipelines_of(request), model)
    try:
        facts = await gateway.entries.facts(pipeline)
    except ModelNotReadyError:  # it sleeps, and nobody has used it since this gateway started
        return _describe(key, pipeline)
    return {
        **_describe(key, pipeline),
        "max_model_len": facts.max_model_len,
        "modalities": list(facts.modalities),
        "voices": list(facts.voices),
        "stages": list(facts.stages),
        "answering_stage": facts.answering,
        "hears": facts.hears,
        "random_weights": facts.random_weights,
    }


@router.head("/v1/audio/models", include_in_schema=False)
@router.get("/v1/audio/models")
async def list_speech_models(request: Request) -> dict[str, Any]:
    """Lists the ready models of /v1/audio/speech. `models` repeats `data` for Open WebUI, which reads it."""
    gateway = gateway_of(request)
    ids = model_ids(pipelines_of(request))
    facts = {key: await _facts_if_ready(gateway, pipeline) for key, pipeline in ids.items()}
    speaking = {key: ids[key] for key, one in facts.items() if one is not None and one.reads_aloud}
    models = _list_models(speaking, ids)
    return {"object": "list", "data": models, "models": models}


@router.head("/v1/audio/voices", include_in_schema=False)
@router.get("/v1/audio/voices")
async def list_voices(request: Request, model: str | None = Query(default=None)) -> dict[str, Any]:
    """Lists the voices of all ready models that speak, or of the given model."""
    gateway = gateway_of(request)
    pipelines = pipelines_of(request)
    if model is not None:
        key, pipeline = find_pipeline(pipelines, model)
        return _list_voices(_voices(gateway, key, pipeline, await gateway.entries.facts(pipeline)))
    data: list[dict[str, Any]] = []
    for key, pipeline in model_ids(pipelines).items():
        facts = await _facts_if_ready(gateway, pipeline)
        data += _voices(gateway, key, pipeline, facts) if facts is not None else []
    return _list_voices(data)


def _list_voices(data: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the answer with these voices. `voices` repeats them for Open WebUI and SillyTavern, which read it."""
    return {"object": "list", "data": data, "voices": data}


def _describe(key: str, pipeline: ServedPipeline) -> dict[str, Any]:
    return {"id": key, "object": "model", "created": pipeline.created, "owned_by": pipeline.namespace or "omnipipeline"}


async def _facts_if_ready(gateway: Gateway, pipeline: ServedPipeline) -> EntryFacts | None:
    """Returns the facts of a pipeline; None if it is not ready or cannot be reached. Lists leave out such pipelines."""
    if not pipeline.ready:
        return None
    try:
        return await gateway.entries.facts(pipeline)
    except GatewayError:
        return None


def _list_models(shown: dict[str, ServedPipeline], all_ids: Mapping[str, ServedPipeline]) -> list[dict[str, Any]]:
    """Returns the models in `shown`, then their aliases, except aliases that are also the id of a model."""
    aliases = {alias: key for key, one in reversed(shown.items()) for alias in one.aliases if alias not in all_ids}
    models = [_describe(key, pipeline) for key, pipeline in shown.items()]
    return models + [{**_describe(alias, shown[key]), "root": key} for alias, key in aliases.items()]


def _voices(gateway: Gateway, key: str, pipeline: ServedPipeline, facts: EntryFacts) -> list[dict[str, Any]]:
    voices = facts.voices
    aliases = list_aliases(gateway.voice_aliases(pipeline), voices)
    return [
        {"id": voice, "object": "voice", "name": voice, "model": key, "aliases": aliases.get(voice, [])}
        for voice in voices
    ]
