"""GET /health, /ready, /metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client.exposition import choose_encoder
from starlette.responses import JSONResponse, Response

from omni_gateway.context import gateway_of

router = APIRouter(tags=["health"])


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
