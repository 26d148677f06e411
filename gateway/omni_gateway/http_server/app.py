"""The ASGI app of a gateway, with /health, /ready, /metrics; and OpenAI's APIs that it does not have, refused with an
alternative."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from prometheus_client.exposition import choose_encoder
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, JSONResponse, Response

from omni_gateway.api import chat, models, speech, transcriptions
from omni_gateway.api.errors import add_error_handlers
from omni_gateway.context import Gateway, gateway_of
from omni_gateway.entries.connections import Entries
from omni_gateway.entries.pipelines import Pipelines
from omni_gateway.errors import NotImplementedHereError
from omni_gateway.guard.client_secrets import ClientSecrets
from omni_gateway.guard.keys import open_keys
from omni_gateway.guard.middleware import PROTECTED, VOICE_LISTS, Guard
from omni_gateway.guard.reply import IGNORED_HEADER
from omni_gateway.openai.chat_events import NOTES_HEADER
from omni_gateway.pages.document import HEADERS, PageFiles, complete_document, render_docs
from omni_gateway.realtime import route as realtime
from omni_gateway.settings import GatewaySettings
from omni_gateway.telemetry import GatewayMetrics, open_tracing

router = APIRouter(tags=["health"])
REFUSED: Final = {
    "/v1/responses": "that API needs stored answers, and this gateway stores none; use /v1/chat/completions",
    "/v1/completions": "the gateway accepts only conversations, for the chat template; use /v1/chat/completions",
    "/v1/embeddings": "pipelines return text and audio, not embeddings",
    "/v1/images/generations": "pipelines return text and audio, not images",
}
"""Reason by path."""


@router.head("/health", include_in_schema=False)  # what `wget --spider` and some monitors send
@router.get("/health")
async def health() -> dict[str, str]:
    """Answers 200 as long as the process can answer at all."""
    return {"status": "ok"}


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses={503: {"description": "The gateway takes no new requests."}})
async def ready(request: Request) -> Response:
    """Answers 200 if this gateway accepts requests: it knows the pipelines and is not draining. Otherwise 503."""
    gateway = gateway_of(request)
    reason = "draining" if gateway.draining else "" if gateway.pipelines.is_synced() else "pipelines are not known yet"
    return JSONResponse({"status": reason or "ok"}, 503 if reason else 200)


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Prometheus metrics: omni_gateway_*. In the OpenMetrics format, latencies have exemplars that name a trace."""
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(gateway_of(request).metrics.registry), headers={"content-type": kind})


async def refuse(request: Request) -> None:
    """Raises NotImplementedHereError with the reason for the request's path."""
    path = request.url.path
    raise NotImplementedHereError(f"{path} is not supported: {REFUSED[path]}.")


for _path in REFUSED:
    router.add_api_route(_path, refuse, methods=["GET", "POST"], response_model=None, include_in_schema=False)


LIMIT_HEADERS = tuple(
    f"x-ratelimit-{part}-{what}" for part in ("limit", "remaining", "reset") for what in ("requests", "audio-seconds")
)


class GatewayApp(FastAPI):
    """The app, whose OpenAPI document describes the errors and which routes need a key."""

    def openapi(self) -> dict[str, Any]:
        """Returns the OpenAPI document; see complete_document."""
        if self.openapi_schema is None:
            settings: GatewaySettings = self.state.gateway.settings
            self.openapi_schema = complete_document(
                super().openapi(),
                protected=PROTECTED,
                keys=settings.keys_file is not None,
                open_lists=VOICE_LISTS if settings.voices_without_key else (),
            )
        return self.openapi_schema


Running = Callable[[GatewayMetrics], AbstractAsyncContextManager[None]]
"""Returns a context manager whose work runs while its block is open."""


def create_app(
    pipelines: Pipelines,
    settings: GatewaySettings | None = None,
    *,
    replicas: Callable[[], int] = lambda: 1,
    running: Sequence[Running] = (),
) -> FastAPI:
    """Returns the app that serves the pipelines in `pipelines`, which may change at any time.

    running: functions whose context managers keep pipelines and replicas up to date while the app serves. replicas:
    returns the number of the gateway's ready replicas, which share the limits of keys. Raises GatewaySettingsError if
    the key file cannot be used, or if tracing is requested without OpenTelemetry.
    """
    settings = settings or GatewaySettings()
    gateway = Gateway(
        settings, pipelines, Entries(request_s=settings.request_seconds), GatewayMetrics(), open_tracing()
    )
    keys = open_keys(settings.keys_file) if settings.keys_file else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        async with AsyncExitStack() as stack:
            for one in running:
                await stack.enter_async_context(one(gateway.metrics))
            yield
        await gateway.entries.close()
        await asyncio.to_thread(gateway.tracing.close)

    middleware = [Middleware(Guard, gateway=gateway, keys=keys, replicas=replicas)]
    if gateway.settings.cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(gateway.settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # clients add headers of their own, such as x-stainless-arch
            expose_headers=["x-request-id", "retry-after", IGNORED_HEADER, NOTES_HEADER, *LIMIT_HEADERS],
        )
        middleware.insert(0, cors)
    app = GatewayApp(
        title="omnipipeline gateway",
        description="OpenAI's API in front of any-to-any pipelines.",
        middleware=middleware,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own page loads scripts from another host
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    app.state.client_secrets = ClientSecrets(keys, time.time)
    add_error_handlers(app)
    app.include_router(router)
    for part in (models, chat, speech, transcriptions, realtime):
        app.include_router(part.router)
    app.include_router(realtime.secrets_router)
    app.add_route("/docs", lambda request: HTMLResponse(render_docs(app.openapi()), headers=HEADERS))
    # A mount would also take requests to other routes with a method that the route does not allow.
    app.router.default = PageFiles()
    return app
