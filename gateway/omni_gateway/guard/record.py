"""What is kept of a request that has ended: metrics, its span and a log line.

Anyone who can reach the gateway can send requests without a valid key as fast as it answers. A line for each would fill
the log, so the first is logged, then only their number, once a period.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from starlette.routing import Match
from starlette.types import Scope

from omni_gateway.context import Call, Gateway
from omni_proto.runtime.otlp import exemplar_of

log = logging.getLogger(__name__)

PROBES: Final = ("/health", "/ready", "/metrics")
"""Paths that are not logged, and are answered even if there are too many requests. Otherwise kubelet would restart a
busy gateway."""
PERIOD_S: Final = 60.0
BAD_STATUS: Final = 400
WRONG_KEY_STATUS: Final = 401
Later = Callable[[float, Callable[[], None]], Any]
"""Calls a function after a number of seconds."""


class RouteNames:
    """The paths of an app's routes, such as /v1/models/{model:path}."""

    def __init__(self) -> None:
        self._plain: frozenset[str] | None = None
        """The routes without parameters. Trying each route costs more than all else in a refusal."""

    def find(self, scope: Scope) -> str:
        """Returns the path of a request's route; empty if it has none. Also for a request that the guard refused before
        the app looked for its route."""
        if "route" in scope or "app" not in scope:
            return str(getattr(scope.get("route"), "path", ""))
        routes = scope["app"].routes
        if self._plain is None:
            self._plain = frozenset(path for route in routes if "{" not in (path := str(getattr(route, "path", "{"))))
        if scope["path"] in self._plain:
            return str(scope["path"])
        for route in routes:
            path = str(getattr(route, "path", ""))
            # PARTIAL: the path of a route, with another method
            if path not in self._plain and route.matches(scope)[0] is not Match.NONE:
                return path
        return ""


def _call_later(seconds: float, function: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, function)


class RefusedKeys:
    """Decides which requests without a valid key are logged. Use from one event loop."""

    def __init__(self, later: Later = _call_later) -> None:
        self._later = later
        self._unlogged = 0
        self._counting = False

    def note(self) -> bool:
        """Count a request. Returns whether to log it: the first one, and the first one after a period without any."""
        if self._counting:
            self._unlogged += 1
            return False
        self._counting = True
        self._later(PERIOD_S, self._summarize)
        return True

    def _summarize(self) -> None:
        count, self._unlogged = self._unlogged, 0
        self._counting = count > 0
        if count:
            log.warning("further requests without a valid API key", extra={"requests": count, "seconds": PERIOD_S})
            self._later(PERIOD_S, self._summarize)


def describe_generation(route: str, call: Call) -> dict[str, str | int]:
    """Returns what OpenTelemetry's conventions for generative AI say about a request that named a model.

    Their list of operations has none for speech or transcription; generate_content is the one for several modalities.
    """
    if not call.model:
        return {}
    used, usage = call.tokens, dict[str, str | int]()
    if used:
        usage["gen_ai.usage.input_tokens"] = used["prompt"]
        usage["gen_ai.usage.output_tokens"] = used["text"] + used["codec"]
    return {
        "gen_ai.operation.name": "chat" if route.endswith("/chat/completions") else "generate_content",
        "gen_ai.provider.name": "omnipipeline",
        "gen_ai.request.model": call.model,
        "gen_ai.output.type": "speech" if call.audio_seconds else "text",
        **usage,
    }


class Recorder:
    """Records the requests of one gateway. Use from one event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._refused_keys = RefusedKeys()
        self._routes = RouteNames()

    def record(self, scope: Scope, call: Call, status: int) -> None:
        """Record a request that has ended, in the metrics, its span and, unless it is a probe, the log."""
        found = self._routes.find(scope)
        route = found or "other"
        took = time.monotonic() - call.started
        self._gateway.metrics.requests.labels(route, str(status)).inc()
        self._gateway.metrics.seconds.labels(route).observe(took, exemplar_of(call.traceparent))
        if call.model:
            self._gateway.metrics.count_model_request(call.model, call.key, status)
        facts = {
            "omnipipeline.request_id": call.id,
            "omnipipeline.model": call.model,
            **describe_generation(found, call),
        }
        broken = call.error if status < BAD_STATUS else ""
        if broken:
            self._gateway.metrics.broken.labels(broken).inc()
        call.span.end(found, status, facts, error=broken)
        if route in PROBES:
            return
        if status == WRONG_KEY_STATUS and not self._refused_keys.note():
            return
        said = {"request_id": call.id, "route": route, "status": status, "seconds": round(took, 4)}
        said |= {"model": call.model, "key": call.key}
        log.info("request", extra={**said, "error": broken} if broken else said)
