"""Runs a gateway: uvicorn on uvloop, with a certificate that may be renewed, and a drain that lets answers end."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import math
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn
from cryptography import x509
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE

from omni_gateway.context import Gateway
from omni_gateway.entries.pipelines import Pipelines
from omni_gateway.http_server.app import Running, create_app
from omni_gateway.http_server.connections import ConnectionBounds, bounded_http
from omni_gateway.http_server.websockets import MESSAGE_BYTES, PING_S, Arriving, BoundedWebSocket
from omni_gateway.settings import GatewaySettings, GatewaySettingsError
from omni_proto.runtime.connections import explain_taken, open_listener

log = logging.getLogger(__name__)
CHECK_S: Final = 5.0
BACKLOG: Final = 2048
ACCEPTED: Final = 16
"""Connections that are accepted in one turn of the event loop. libuv accepts one for each listening descriptor. With a
single one, a probe would wait for as many turns as connections came before it, in each of which requests do their work.
"""
BOUNDS: Final = ConnectionBounds()
UNSENT_BYTES: Final = 64 << 10
"""Maximum unsent bytes that the kernel buffers for a slow reader. The event loop's transport buffers about as many."""


class ServerCertificate:
    """tls.crt and tls.key of a directory, e.g. of a mounted Secret, whose files kubelet replaces together."""

    def __init__(self, directory: Path, report_expiry: Callable[[float], None] = lambda unix_s: None) -> None:
        """report_expiry: called with the end of the certificate that is used, in seconds since 1970."""
        self._report_expiry = report_expiry
        self.certificate = directory / "tls.crt"
        self.key = directory / "tls.key"
        self._written = self._times()
        self._newest: ssl.SSLContext | None = None
        """With the renewed files; None: the server's own context has the present ones."""
        self._refused: tuple[int, ...] | None = None
        """Modification times of the files that could not be used, so that the problem is reported only once."""

    def check(self) -> None:
        """Raises GatewaySettingsError if the files cannot be used."""
        try:
            self._load()
        except (OSError, ssl.SSLError) as error:
            files = f"{self.certificate} and {self.key.name}"
            raise GatewaySettingsError(f"{files} cannot be used as certificate and key: {error}") from error
        self._report()

    def _report(self) -> None:
        try:
            leaf = x509.load_pem_x509_certificates(self.certificate.read_bytes())[0]
        except (OSError, ValueError) as error:  # replaced meanwhile: the next check reads it
            log.warning("the date of the certificate cannot be read", extra={"error": str(error)})
            return
        self._report_expiry(leaf.not_valid_after_utc.timestamp())

    def renew(self) -> bool:
        """Use the files for new connections, if they have changed. Returns whether changed files were loaded.

        Files that cannot be used are logged once, and the earlier certificate stays in use.
        """
        found = self._times()
        if found in (self._written, self._refused):
            return False
        try:
            renewed = self._load()
        except (OSError, ssl.SSLError) as error:
            log.error("the renewed certificate cannot be used, the earlier one stays", extra={"error": str(error)})
            self._refused = found
            return False
        self._newest, self._written, self._refused = renewed, found, None
        self._report()
        log.info("certificate renewed", extra={"file": str(self.certificate)})
        return True

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # An empty passphrase: without one, OpenSSL would ask at the terminal.
        context.load_cert_chain(self.certificate, self.key, password=b"")
        return context

    async def keep_renewed(self, context: ssl.SSLContext) -> None:
        """Check the files every CHECK_S seconds, until cancelled. context: of the listening server.

        A renewed pair replaces the earlier one in one step: OpenSSL loads first the certificate and then its key, and a
        handshake between the two would fail.
        """
        context.sni_callback = self._choose
        while True:
            await asyncio.sleep(CHECK_S)
            await asyncio.to_thread(self.renew)

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        # OpenSSL also calls this for a client that names no server.
        if self._newest is not None:
            connection.context = self._newest

    def _times(self) -> tuple[int, ...]:
        """Returns the files' modification times in ns; empty while a file is missing."""
        try:
            return tuple(file.stat().st_mtime_ns for file in (self.certificate, self.key))
        except OSError:
            return ()


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """The address at which a gateway listens."""

    host: str = "127.0.0.1"
    """Empty: every address, of IPv4 and, where available, IPv6."""
    port: int = 8000
    """0: any free port."""
    tls_dir: Path | None = None
    """Directory with tls.crt and tls.key; None: plain HTTP."""
    address_file: Path | None = None
    """File that gets {"http": URL} once the gateway listens."""


class GatewayServer(uvicorn.Server):
    """A server that drains on the first SIGTERM or SIGINT.

    It first reports that it is not ready, then stops accepting requests, then waits for answers to end. After SIGTERM
    it still accepts requests for drain_notice_seconds; after SIGINT it does not.
    """

    def __init__(
        self, config: uvicorn.Config, gateway: Gateway, address_file: Path | None, certificate: ServerCertificate | None
    ) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._address_file = address_file
        self._certificate = certificate
        self._renewing: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then log the address and write it to the address file."""
        if sockets is None:
            listener = self._open_listener()
            sockets = [listener, *(listener.dup() for _ in range(ACCEPTED - 1))]
        await super().startup(sockets)
        if not self.started:
            return
        if self._certificate is not None and self.config.ssl is not None:
            self._renewing = asyncio.create_task(self._certificate.keep_renewed(self.config.ssl))
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        url = f"{'https' if self.config.is_ssl else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        log.info("listening", extra={"url": url})
        if self._address_file is not None:
            partial = self._address_file.with_name(f"{self._address_file.name}.partial")
            partial.write_text(json.dumps({"http": url}), encoding="utf-8")
            partial.replace(self._address_file)

    def _open_listener(self) -> socket.socket:
        try:
            listener = open_listener(self.config.host, self.config.port)
        except OSError as error:
            log.error(explain_taken(error, self.config.host or "all addresses", self.config.port))
            sys.exit(STARTUP_FAILURE)
        bound_unsent(listener, self._gateway.settings.send_seconds)
        return listener

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for answers and for the turns of sessions to end, at most drain_seconds."""
        self._gateway.draining = True
        await super().shutdown(sockets)
        if self._renewing is not None:
            self._renewing.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn for SIGINT and SIGTERM. A second signal also ends the answers that are still being sent.

        uvicorn's own handler would raise the signal again after the drain, and the exit status would report a failure.
        """
        notice_s = self._gateway.settings.drain_notice_seconds
        if self._gateway.draining:
            self.should_exit = self.force_exit = True
            return
        self._gateway.draining = True
        if sig == signal.SIGTERM and notice_s:
            asyncio.get_running_loop().call_later(notice_s, self._stop)
        else:
            self._stop()

    def _stop(self) -> None:
        self.should_exit = True


def bound_unsent(listener: socket.socket, longest_s: float) -> None:
    """Limit the unsent bytes that the kernel buffers for each connection of a listener, and how long it keeps them.

    Linux would buffer up to 4 MiB for each, which counts as memory of the container: 200 stalled readers would take
    800 MiB. longest_s: if a client takes none of these bytes for this time, the kernel ends the connection. Without
    this limit, a connection with unsent bytes would never end, because closing it waits until everything is sent.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(longest_s * 1000))


def make_server(app: FastAPI, settings: GatewaySettings, listen: ListenOptions) -> GatewayServer:
    """Returns the server of an app. Raises GatewaySettingsError if the TLS files cannot be used."""
    certificate = (
        None
        if listen.tls_dir is None
        else ServerCertificate(listen.tls_dir, app.state.gateway.metrics.set_certificate_expiry)
    )
    if certificate is not None:
        certificate.check()
    config = uvicorn.Config(
        app,
        host=listen.host,
        port=listen.port,
        loop="uvloop",
        http=bounded_http(BOUNDS),
        timeout_keep_alive=math.ceil(BOUNDS.idle_s),
        ws=partial(BoundedWebSocket, arriving=Arriving()),  # type: ignore[arg-type]
        ws_max_size=MESSAGE_BYTES,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=int(settings.drain_seconds),
        ssl_certfile=None if certificate is None else str(certificate.certificate),
        ssl_keyfile=None if certificate is None else str(certificate.key),
    )
    return GatewayServer(config, app.state.gateway, listen.address_file, certificate)


def serve(
    pipelines: Pipelines,
    settings: GatewaySettings,
    listen: ListenOptions,
    *,
    replicas: Callable[[], int] = lambda: 1,
    running: Sequence[Running] = (),
) -> None:
    """Serve until SIGTERM or SIGINT. Raises the errors of create_app and make_server.

    If the address is in use, this is logged, and SystemExit is raised.
    """
    app = create_app(pipelines, settings, replicas=replicas, running=running)
    app.openapi()  # takes 0.3 s, in which nobody would be answered if the first request for it had to wait
    server = make_server(app, settings, listen)
    # Later collections skip the imported modules. Traversing them takes tens of milliseconds in each collection.
    gc.collect()
    gc.freeze()
    server.run()
