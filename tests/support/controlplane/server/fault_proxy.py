"""A proxy in front of the API server that injects faults: error codes, no response, broken watches, a halt at a write.

    with FaultProxy(server) as proxy:
        kubeconfig = server.kubeconfig_for_service_account("ns", "operator", server=proxy.url)
        proxy.fail(0.3)

The proxy terminates TLS with the API server's certificate, so clients must use bearer tokens. It runs in its own
thread. Methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Literal, Self, TypeVar

import aiohttp
from aiohttp import web
from yarl import URL

from support.controlplane.server.api_calls import Call
from support.controlplane.server.api_server import ApiServer
from support.processes.polling import PATIENCE_S

T = TypeVar("T")
Fault = Literal["409", "429", "500", "503", "silence", "lost answer"]
FAULTS: tuple[Fault, ...] = ("409", "429", "500", "silence", "lost answer")
_REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "content-length", "host"}

POD_CHANGES = ("deployments", "pods", "replicasets")
"""Resources for hold_watches.

On a busy machine pods become Ready one by one, and the operator may write the status after each. If these events are
held until all pods are Ready, they arrive together, and the number of status writes does not depend on the machine.
"""


class FaultProxy:
    """A context manager that runs the proxy. `url` is its address; `calls` has every request so far."""

    def __init__(self, server: ApiServer, *, silence_s: float = 2.0) -> None:
        """`silence_s`: how long a call with the fault "silence" hangs before its connection is closed."""
        self._server = server
        self._silence_s = silence_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._watches: dict[web.StreamResponse, asyncio.Transport] = {}
        self._transports: set[asyncio.Transport] = set()
        self._share, self._faults, self._random = 0.0, FAULTS, random.Random(0)
        self._away = False
        self._stop_after: int | None = None
        self._selects: Callable[[Call], bool] = lambda call: call.write
        self._open = asyncio.Event()
        self._held: frozenset[str] = frozenset()
        self._flow = asyncio.Event()
        self.calls: list[Call] = []
        self.writes = 0
        self.stopped = threading.Event()
        """Set when the write of `stop_after_write` has been executed."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)

    def fail(self, share: float, faults: Sequence[Fault] = FAULTS, *, seed: int = 0) -> None:
        """Makes a share (0 to 1) of all later calls fail, including calls that open a watch. 0 ends the faults."""
        self._share, self._faults, self._random = share, tuple(faults), random.Random(seed)

    def cut_watches(self) -> int:
        """Breaks the connection of every open watch. Returns how many there were."""
        return self._run(self._end_watches(gone=False))

    def expire_watches(self) -> int:
        """Ends every open watch with 410 Gone, as if the server's history were too short. Returns their number."""
        return self._run(self._end_watches(gone=True))

    def hold_watches(self, *resources: str) -> None:
        """Holds all later events of these resources' watches until `flow` is called. Then they arrive together."""
        self._loop.call_soon_threadsafe(self._flow.clear)
        self._held = frozenset(resources)

    def flow(self) -> None:
        """Ends `hold_watches`."""
        self._held = frozenset()
        self._loop.call_soon_threadsafe(self._flow.set)

    def go_away(self) -> None:
        """Breaks every connection, and each new one at its first request, until `come_back`."""
        self._away = True
        self._run(self._break_all())

    def come_back(self) -> None:
        """Ends `go_away`."""
        self._away = False

    def stop_after_write(self, count: int, selects: Callable[[Call], bool] = lambda call: call.write) -> None:
        """Executes `count` more writes, but withholds the last one's response. Later calls hang until `release`.

        `stopped` is set after the last write, so that a test can kill the client before it gets a response.
        """
        self.stopped.clear()
        self.writes, self._stop_after, self._selects = 0, count, selects
        self._loop.call_soon_threadsafe(self._open.set)

    def release(self) -> None:
        """Ends `stop_after_write` and breaks all connections."""
        self._stop_after = None
        self._run(self._break_all())
        self._loop.call_soon_threadsafe(self._open.set)

    # In the loop

    async def _start(self) -> None:
        pki = self._server.pki
        upstream = ssl.create_default_context(cafile=str(pki.ca))
        connector = aiohttp.TCPConnector(ssl=upstream, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        application = web.Application(client_max_size=8 << 20)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pki.server_certificate, pki.server_key)
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls, shutdown_timeout=0.1).start()
        ((_, port),) = self._runner.addresses
        self.url = f"https://127.0.0.1:{port}"
        self._open.set()

    async def _close(self) -> None:
        await self._break_all()
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        watch = request.query.get("watch") in ("1", "true")
        agent = request.headers.get("User-Agent", "")
        call = Call(request.method, request.path, watch, agent, time.monotonic())
        self.calls.append(call)
        transport = request.transport
        if not isinstance(transport, asyncio.Transport) or self._away:
            call.fault = "away"
            return _abort(transport)
        self._transports.add(transport)
        fault = self._choose_fault(request.method)
        if fault:
            call.fault = fault
            if (answer := await self._refuse(fault, transport)) is not None:
                call.status = int(fault) if fault.isdecimal() else 0
                return answer
        await self._open.wait()
        if self._selects(call):
            return await self._write(request, call, transport)
        return await self._forward(request, call, transport)

    def _choose_fault(self, method: str) -> Fault | None:
        # A real API server never answers a read with 409, and kopf treats that answer as fatal.
        faults = [fault for fault in self._faults if method != "GET" or fault != "409"]
        return self._random.choice(faults) if faults and self._random.random() < self._share else None

    async def _refuse(self, fault: Fault, transport: asyncio.Transport) -> web.StreamResponse | None:
        """Returns the faulty response; None if the call must be executed first."""
        if fault == "lost answer":
            return None
        if fault == "silence":
            await asyncio.sleep(self._silence_s)
            return _abort(transport)
        headers = {"Retry-After": "1"} if fault == "429" else {}
        return web.json_response(_status(int(fault)), status=int(fault), headers=headers)

    async def _write(self, request: web.Request, call: Call, transport: asyncio.Transport) -> web.StreamResponse:
        self.writes += 1
        if self._stop_after is None or self.writes < self._stop_after:
            return await self._forward(request, call, transport)
        self._open.clear()  # before the write is sent, so that no other call is executed
        async with self._upstream(request) as upstream:
            await upstream.read()
            call.status, call.fault = upstream.status, "stopped"
        self.stopped.set()
        await asyncio.sleep(3600)  # until the client is killed or `release` breaks its connection
        return _abort(transport)

    async def _forward(self, request: web.Request, call: Call, transport: asyncio.Transport) -> web.StreamResponse:
        async with self._upstream(request) as upstream:
            call.status = upstream.status
            if call.fault == "lost answer":
                return _abort(transport)
            headers = {k: v for k, v in upstream.headers.items() if k.lower() not in _HOP_BY_HOP}
            if not call.watch:
                return web.Response(status=upstream.status, headers=headers, body=await upstream.read())
            answer = web.StreamResponse(status=upstream.status, headers=headers)
            await answer.prepare(request)
            self._watches[answer] = transport
            try:
                async for chunk in upstream.content.iter_any():
                    if call.resource in self._held:
                        await self._flow.wait()
                    await answer.write(chunk)
                await answer.write_eof()
            except (ConnectionError, aiohttp.ClientError):
                transport.abort()  # if one side is gone, the other is closed too
            finally:
                self._watches.pop(answer, None)
            return answer

    def _upstream(self, request: web.Request) -> Any:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        body = request.content if request.can_read_body else None
        url = self._server.url + request.raw_path
        # encoded=True: percent signs of a selector are passed unchanged.
        return self._session.request(
            request.method, URL(url, encoded=True), headers=headers, data=body, allow_redirects=False
        )

    async def _end_watches(self, *, gone: bool) -> int:
        # The handler of a watch whose connection broke ends with the next event.
        watches = {answer: transport for answer, transport in self._watches.items() if not transport.is_closing()}
        for answer, transport in watches.items():
            if gone:
                await answer.write(json.dumps({"type": "ERROR", "object": _status(410)}).encode() + b"\n")
                await answer.write_eof()
                transport.close()
            else:
                transport.abort()
        return len(watches)

    async def _break_all(self) -> None:
        for transport in self._transports:
            transport.abort()
        self._transports.clear()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(PATIENCE_S)


def _abort(transport: asyncio.BaseTransport | None) -> web.StreamResponse:
    if isinstance(transport, asyncio.Transport):
        transport.abort()
    return web.Response()  # never arrives


def _status(code: int) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": _REASONS[code],
        "message": "made up by the test's proxy",
    }
