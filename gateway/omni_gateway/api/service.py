"""GET /health, /ready, /metrics; and OpenAI's APIs that this gateway does not have, refused with an alternative."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from prometheus_client.exposition import choose_encoder
from starlette.responses import JSONResponse, Response

from omni_gateway.context import gateway_of
from omni_gateway.errors import NotImplementedHereError

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
