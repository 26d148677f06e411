"""GET /v1/realtime: the handshake of a session. POST /v1/realtime/client_secrets: keys for browsers."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, cast

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.websockets import WebSocket

from omni_gateway.api.body_route import BodyRoute
from omni_gateway.context import Call, Gateway, Ration, call_of, gateway_of
from omni_gateway.entries.pipelines import ServedPipeline, find_pipeline, unix_seconds
from omni_gateway.errors import GatewayError, InvalidRequestError, ModelNotFoundError, UpgradeRequiredError
from omni_gateway.guard.client_secrets import ClientSecrets
from omni_gateway.realtime.call import RealtimeCall
from omni_gateway.realtime.pipeline_calls import learn_writer
from omni_gateway.realtime.state.config import TRANSCRIPTION, Abilities, read_kind, read_writer
from omni_gateway.realtime.state.session import Session

router = APIRouter(tags=["realtime"])
secrets_router = APIRouter(tags=["realtime"], route_class=BodyRoute)
ROUTE: Final = "/v1/realtime"
SUBPROTOCOL: Final = "realtime"
CLIENT_SECRETS: Final = f"{ROUTE}/client_secrets"
_OPENAI_MODELS: Final = ("gpt-", "whisper-")
"""How the models begin that clients name by habit."""
_ID_BYTES: Final = 12


@router.websocket(ROUTE)
async def hold_call(websocket: WebSocket) -> None:
    """Holds a call of several turns, with OpenAI's events."""
    gateway = cast(Gateway, websocket.app.state.gateway)
    call, ration = cast(Call, websocket.scope["omni_call"]), cast(Ration, websocket.scope["omni_ration"])
    wishes = cast(Mapping[str, Any], websocket.scope["omni_session"])
    if websocket.query_params.get("intent") == TRANSCRIPTION:
        wishes = {"type": TRANSCRIPTION, **wishes}
    session = await open_session(gateway, call, wishes, websocket.query_params.get("model"))
    offered = websocket.scope.get("subprotocols", [])
    await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
    await RealtimeCall(websocket, gateway, call, ration, session).run()


class ExpiresAfter(BaseModel):
    """How long a client secret opens sessions. An open session stays open."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=10, le=7200)] = 600


class ClientSecretRequest(BaseModel):
    """What a client secret is made for."""

    expires_after: ExpiresAfter = ExpiresAfter()
    session: dict[str, Any] = {}
    """The session, as session.update has it; `model` names the pipeline."""


class ClientSecret(BaseModel):
    """A client secret."""

    value: str
    """Sent as a key to /v1/realtime, and valid nowhere else."""
    expires_at: int
    """Seconds since the epoch."""
    session: dict[str, Any]
    """The session as it will be."""


@secrets_router.post(CLIENT_SECRETS)
async def create_client_secret(request: Request, body: ClientSecretRequest) -> ClientSecret:
    """Makes a key for a browser, with which it opens sessions for a few minutes."""
    gateway, call = gateway_of(request), call_of(request)
    session = await open_session(gateway, call, body.session, None)
    made = cast(ClientSecrets, request.app.state.client_secrets)
    value, expires_at = made.make(call.key, {**body.session, "model": call.model}, body.expires_after.seconds)
    return ClientSecret(value=value, expires_at=expires_at, session=session.view())


async def open_session(gateway: Gateway, call: Call, wishes: Mapping[str, Any], model: str | None) -> Session:
    """Returns a new session. model: the pipeline that the URL names, which goes before that of the wishes.

    Raises GatewayError.
    """
    served = call.rights.filter(gateway.pipelines.list_pipelines())
    wanted = model or wishes.get("model")
    if wanted is not None and not isinstance(wanted, str):
        raise InvalidRequestError("session.model is a text.", param="session.model", code="invalid_type")
    if wanted is None and read_kind(wishes) == TRANSCRIPTION:
        wanted = await _find_writer(gateway, served, read_writer(wishes))
    key, pipeline = pick_pipeline(served, wanted)
    call.model = key
    await gateway.holds.wait(pipeline, call.holder)
    abilities = Abilities(key, await gateway.entries.facts(pipeline), gateway.voice_aliases(pipeline))
    await learn_writer(gateway, call, abilities, wishes)
    limits = gateway.settings.realtime
    expires_at = unix_seconds() + int(limits.session_seconds)
    return Session(abilities, make_id, expires_at=expires_at, max_bytes=limits.session_bytes, wishes=wishes)


async def _find_writer(gateway: Gateway, served: Sequence[ServedPipeline], named: str | None) -> str | None:
    """Returns the pipeline of a session of transcripts whose URL names none: the one that its transcription names, or
    the only one that writes down whatever it hears. None if there is no such pipeline."""
    if any(named in one.addresses for one in served):
        return named
    found = []
    for one in served:
        with contextlib.suppress(GatewayError):
            if one.accepts and (await gateway.entries.facts(one)).transcribes:
                found.append(one.id)
    return found[0] if len(found) == 1 else None


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
