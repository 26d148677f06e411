"""GET /v1/realtime: the handshake of a session."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final, cast

from fastapi import APIRouter, Request
from starlette.websockets import WebSocket

from omni_gateway.context import Call, Gateway, Ration
from omni_gateway.entries.pipelines import ServedPipeline, find_pipeline, unix_seconds
from omni_gateway.errors import InvalidRequestError, ModelNotFoundError, UpgradeRequiredError
from omni_gateway.realtime.call import RealtimeCall
from omni_gateway.realtime.state.config import Abilities
from omni_gateway.realtime.state.session import Session

router = APIRouter(tags=["realtime"])
ROUTE: Final = "/v1/realtime"
SUBPROTOCOL: Final = "realtime"
_OPENAI_MODELS: Final = ("gpt-",)
"""How the models begin that clients name by habit."""
_ID_BYTES: Final = 12


@router.websocket(ROUTE)
async def hold_call(websocket: WebSocket) -> None:
    """Holds a call of several turns, with OpenAI's events."""
    gateway = cast(Gateway, websocket.app.state.gateway)
    call, ration = cast(Call, websocket.scope["omni_call"]), cast(Ration, websocket.scope["omni_ration"])
    served = call.rights.filter(gateway.pipelines.list_pipelines())
    key, pipeline = pick_pipeline(served, websocket.query_params.get("model"))
    call.model = key
    facts = await gateway.entries.facts(pipeline)
    abilities = Abilities(key, facts, gateway.voice_aliases(pipeline))
    limits = gateway.settings.realtime
    session = Session(
        abilities,
        make_id,
        expires_at=unix_seconds() + int(limits.session_seconds),
        max_bytes=limits.session_bytes,
    )
    offered = websocket.scope.get("subprotocols", [])
    await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
    await RealtimeCall(websocket, gateway, call, ration, session).run()


@router.get(ROUTE, include_in_schema=False)
async def refuse_request(request: Request) -> None:
    """Raises UpgradeRequiredError: a request that is no handshake, or a wrong one."""
    raise UpgradeRequiredError(
        f"{ROUTE} is a WebSocket: send a handshake of RFC 6455, version 13, with nothing before its answer.",
        headers={"upgrade": "websocket"},
    )


def make_id(prefix: str) -> str:
    """Returns a new id."""
    return f"{prefix}_{secrets.token_hex(_ID_BYTES)}"


def pick_pipeline(served: Sequence[ServedPipeline], model: str | None) -> tuple[str, ServedPipeline]:
    """Returns the id and the pipeline that a session uses. Without a model, or with one of OpenAI's that is no alias,
    this is the only one that there is. Raises ModelNotFoundError, ModelNotReadyError, InvalidRequestError."""
    if model is None and len(served) != 1:
        raise InvalidRequestError(
            "Missing required parameter: 'model', in the URL.", param="model", code="missing_required_parameter"
        )
    try:
        return find_pipeline(served, served[0].id if model is None else model)
    except ModelNotFoundError:
        if model is None or len(served) != 1 or not model.lower().startswith(_OPENAI_MODELS):
            raise
        return find_pipeline(served, served[0].id)
