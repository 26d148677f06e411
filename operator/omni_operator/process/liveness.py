"""Health over HTTP: /healthz fails if a watch is silent or work is stuck; /readyz fails until the caches are filled.

A watch is renewed every minute, so one that has received nothing for three minutes is dead, even if its connection is
still open. Kubelet then restarts the process, which reads credentials and addresses again. A watch that the API server
refuses (403) does not count: a restart would not help.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aiohttp import web

from omni_operator.process.settings import OperatorSettingsError
from omni_proto.runtime.connections import BACKLOG, BoundedConnections, open_listener

MAX_SILENCE_S = 180.0
MAX_WORK_S = 180.0
"""Well above the time limit of one reconcile (RECONCILE_TIMEOUT_S)."""


def check_alive(watch_ages: Mapping[str, float], stuck_s: float) -> list[str]:
    """Returns the problems of the process; empty if there are none."""
    problems = [
        f"watch of {name}: nothing heard for {age_s:.0f} s (limit {MAX_SILENCE_S:.0f} s)"
        for name, age_s in sorted(watch_ages.items())
        if age_s > MAX_SILENCE_S
    ]
    if stuck_s > MAX_WORK_S:
        problems.append(f"no reconcile has ended for {stuck_s:.0f} s (limit {MAX_WORK_S:.0f} s)")
    return problems


def check_ready(unsynced: Sequence[str]) -> list[str]:
    """Returns what the process still waits for before it is ready; empty if it is ready."""
    return [f"not listed yet: {', '.join(sorted(unsynced))}"] if unsynced else []


class HttpEndpoints:
    """Two HTTP servers, for health and metrics, with bounded connections, on all IPv4 and IPv6 addresses."""

    def __init__(
        self,
        alive: Callable[[], list[str]],
        ready: Callable[[], list[str]],
        metrics: Callable[[str], tuple[bytes, str]],
    ) -> None:
        """metrics: returns body and content type for an Accept header."""
        self._checks = {"/healthz": alive, "/readyz": ready}
        self._metrics = metrics
        self._runners: list[web.AppRunner] = []
        self._servers: list[asyncio.Server] = []

    async def start(self, health_port: int, metrics_port: int, address_file: Path | None) -> None:
        """Bind both ports and write them as JSON to address_file, atomically. Raises OperatorSettingsError."""
        health = web.Application()
        for path in self._checks:
            health.router.add_get(path, self._check)
        metrics = web.Application()
        metrics.router.add_get("/metrics", self._render)
        ports = {"health": await self._serve(health, health_port), "metrics": await self._serve(metrics, metrics_port)}
        if address_file is not None:
            temporary = address_file.with_suffix(".tmp")
            temporary.write_text(json.dumps(ports), encoding="utf-8")
            os.replace(temporary, address_file)

    async def stop(self) -> None:
        """Close both servers."""
        for server in self._servers:
            server.close()
        for runner in self._runners:
            await runner.cleanup()

    async def _serve(self, app: web.Application, port: int) -> int:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        self._runners.append(runner)
        await runner.setup()
        try:
            listener = open_listener("", port)
        except OSError as error:
            raise OperatorSettingsError(f"port {port} cannot be bound: {error.strerror}; choose another one") from error
        if runner.server is None:
            raise RuntimeError("a runner that is set up has a server")
        bounded = BoundedConnections(runner.server)
        server = await asyncio.get_running_loop().create_server(bounded, sock=listener, backlog=BACKLOG)
        self._servers.append(server)
        return int(listener.getsockname()[1])

    async def _check(self, request: web.Request) -> web.Response:
        problems = self._checks[request.path]()
        return _last(web.Response(text="\n".join(problems or ["ok"]) + "\n", status=503 if problems else 200))

    async def _render(self, request: web.Request) -> web.Response:
        body, content_type = self._metrics(request.headers.get("Accept", ""))
        return _last(web.Response(body=body, headers={"Content-Type": content_type}))


def _last(response: web.Response) -> web.Response:
    """Returns the response, marked so that the server closes the connection after it."""
    response.force_close()
    return response
