"""Serves /metrics over HTTP, in Prometheus' text format or in the OpenMetrics format, which has exemplars.

The number of connections is bounded, and each connection gets one response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from omni_proto.runtime.connections import BACKLOG, BoundedConnections, explain_taken, open_listener
from omni_stage.errors import ConfigurationError

STOP_S = 1.0


class MetricsServer:
    """Answers scrapes on the running event loop. `start`, then `close`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._http = web.Server(self._answer, access_log=None)
        self._server: asyncio.Server | None = None
        # One thread, so that scrapes take at most one core from requests. The bound on connections also bounds the
        # thread's queue.
        self._collector = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self.port = 0
        """The port, once started."""

    async def start(self, host: str, port: int) -> int:
        """Bind and start; port 0 picks any free port. Returns the port. Raises ConfigurationError."""
        try:
            listener = open_listener(host, port)
        except OSError as error:
            explained = f"listen.metricsPort: {explain_taken(error, host, port)}"
            raise ConfigurationError(explained, field="listen.metricsPort") from error
        bounded = BoundedConnections(self._http)
        self._server = await asyncio.get_running_loop().create_server(bounded, sock=listener, backlog=BACKLOG)
        self.port = int(listener.getsockname()[1])
        return self.port

    async def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.close()
        await self._http.shutdown(STOP_S)
        self._collector.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.path not in ("/metrics", "/"):
            response = web.Response(status=404, text="only /metrics is here\n")
        elif request.method not in ("GET", "HEAD"):
            response = web.Response(status=405, text="only GET is answered\n", headers={"Allow": "GET, HEAD"})
        else:
            loop = asyncio.get_running_loop()
            encode, kind = _choose_format(request.headers.get("Accept", ""))
            body = await loop.run_in_executor(self._collector, encode, self._registry)
            response = web.Response(body=body, headers={"Content-Type": kind})
            response.enable_compression()
        response.force_close()
        return response


def _choose_format(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """Returns the encoder of the format that a scrape asks for, and the format's content type.

    By default, prometheus_client 0.26 replaces the colons in names in the OpenMetrics format, although the format
    allows colons. vllm:num_requests_waiting would become vllm_num_requests_waiting, which vLLM's dashboards do not
    know. The option "allow-utf-8" keeps the colons.
    """
    if "application/openmetrics-text" not in accept:
        return generate_latest, CONTENT_TYPE_LATEST
    return partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8), openmetrics.CONTENT_TYPE_LATEST
