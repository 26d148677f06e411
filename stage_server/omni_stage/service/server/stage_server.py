"""A stage server as a process: load, serve, drain, exit."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import prometheus_client

from omni_proto.pod_contract import ExitCode, TerminationReason
from omni_proto.stage_config import StageConfig
from omni_stage.engine.arguments.byte_budget import default_byte_budget
from omni_stage.engine.protocol import StageEngine
from omni_stage.errors import DrainingError, OmniStageError
from omni_stage.models.component import TakesMedia
from omni_stage.process.compile_cache import SharedCompileCache
from omni_stage.process.startup import calm_pollers
from omni_stage.process.termination import report_start_failure, write_termination
from omni_stage.service.edges.channels import DownstreamChannels
from omni_stage.service.guard.admission import Admission, CallQuota, count_start_slots
from omni_stage.service.guard.refusals import HeldRefusals
from omni_stage.service.load import LoadMeter, find_request_limit, kv_reader
from omni_stage.service.metering import StageMetrics
from omni_stage.service.request.in_flight import InFlight
from omni_stage.service.request.runtime import StageRuntime, installed_versions
from omni_stage.service.request.servicer import StageServicer
from omni_stage.service.request.tracing import StageTracing, open_tracing
from omni_stage.service.server.health import StageHealth
from omni_stage.service.server.ports import MetricsServer, Ports, bind, build_health_server, build_main_server
from omni_stage.service.server.watchdog import Watchdog

if TYPE_CHECKING:
    from omni_stage.service.server.tls import ServingCertificate

ENGINE_STOP_S = 20.0
CLOSE_SLACK_S = 5.0
"""Seconds beyond timeouts.request after which gRPC itself ends the calls of a port that is being closed."""

_log = logging.getLogger(__name__)
EngineBuilder = Callable[[StageConfig], StageEngine]


async def drain(
    health: StageHealth,
    in_flight: InFlight,
    *,
    close_port: Callable[[], None],
    notice_s: float,
    grace_s: float,
    abort: asyncio.Event,
) -> bool:
    """Drain the stage. `abort` (a second signal) cuts the drain short. Returns whether every call ended by itself.

    1. Report NOT_SERVING and wait notice_s seconds: load balancers stop sending calls; late calls are still served.
    2. Refuse new calls (DRAINING, which callers retry elsewhere), and call `close_port`: every connection ends with its
       last call. Behind a Service, a client without health checks would otherwise retry on this pod.
    3. Wait at most grace_s seconds for the calls in flight. Calls still in flight after that end with DRAINING.
    """
    health.set_ready(False)
    _log.info("draining: not ready, still accepting", extra={"notice_s": notice_s, "calls": len(in_flight)})
    if not await _wait_for(abort, notice_s):
        in_flight.refuse()
        close_port()
        _log.info("draining: refusing new calls", extra={"grace_s": grace_s, "calls": len(in_flight)})
        if await _idle_or_abort(in_flight, grace_s, abort):
            _log.info("drained")
            return True
    in_flight.refuse()
    ended = in_flight.fail_all(DrainingError("the stage shut down before the request ended"))
    _log.warning("drain was cut short", extra={"calls_ended": ended, "aborted": abort.is_set()})
    await in_flight.wait_idle(1.0)
    return ended == 0


async def _wait_for(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _idle_or_abort(in_flight: InFlight, timeout_s: float, abort: asyncio.Event) -> bool:
    idle = asyncio.create_task(in_flight.wait_idle(timeout_s))
    aborted = asyncio.create_task(abort.wait())
    try:
        done, _ = await asyncio.wait({idle, aborted}, return_when=asyncio.FIRST_COMPLETED)
        return idle in done and idle.result()
    finally:
        idle.cancel()
        aborted.cancel()


class StageServer:
    """One stage server in one event loop. Call `start`, then `serve`, then `close`."""

    def __init__(self, config: StageConfig, registry: prometheus_client.CollectorRegistry) -> None:
        self.config = config
        self.health = StageHealth()
        self.in_flight = InFlight()
        limits = config.limits
        self.admission = Admission(limits.max_concurrent_requests, limits.max_inflight_bytes or default_byte_budget())
        self.metrics = StageMetrics(config, registry, installed_versions().get("omnipipeline", ""))
        entry = self.metrics.entry
        # Only the entry stage holds refusals: other stages are called by stages, each of which acts for many clients.
        self.held = HeldRefusals(limits, entry.held_refusals) if entry is not None else None
        self.ports: Ports | None = None
        self.runtime: StageRuntime | None = None
        self._registry = registry
        self._stack = AsyncExitStack()
        self._engine: StageEngine | None = None
        self._main: grpc.aio.Server | None = None
        self._closing: asyncio.Task[None] | None = None

    async def start(self, build_engine: EngineBuilder) -> Ports:
        """Open the health and metrics ports, load the engine, open the main port, become ready. Raises OmniStageError.

        The engine's processes start before the main port exists. build_engine runs in a thread, because importing an
        engine takes seconds, during which probes must be answered.
        """
        config = self.config
        # Load the certificate first, so that a wrong one is reported immediately, and not minutes later, after the
        # engine has loaded.
        certificate = await self._load_certificate()
        tracing = open_tracing(config.pipeline, config.stage)
        # Close in a thread, because exporting the pending spans may take until OpenTelemetry's timeout.
        self._stack.push_async_callback(asyncio.to_thread, tracing.close)
        probes = build_health_server(self.health)
        health_port = bind(probes, config.listen.host, config.listen.health_port, "listen.healthPort")
        await probes.start()
        calm_pollers()
        self._stack.push_async_callback(probes.stop, 0.2)
        metrics = MetricsServer(self._registry)
        self._stack.push_async_callback(metrics.close)
        metrics_port = await metrics.start(config.listen.host, config.listen.metrics_port)
        engine = await asyncio.to_thread(build_engine, config)
        self._engine = engine
        await engine.start()
        tracing.join_engine()
        runtime = self.runtime = self._build_runtime(engine, tracing)
        self._stack.push_async_callback(runtime.channels.close)
        self._stack.callback(runtime.media.close)
        self._stack.callback(runtime.planners.shutdown)
        main = build_main_server(
            config, StageServicer(runtime), self.health, self.metrics, runtime.starting.in_all, self.held, runtime.load
        )
        grpc_port = bind(
            main,
            config.listen.host,
            config.listen.grpc_port,
            "listen.grpcPort",
            certificate and certificate.credentials(),
        )
        await main.start()
        self._main = main
        self._stack.push_async_callback(main.stop, 0.2)
        if certificate is not None:
            watch = asyncio.create_task(certificate.watch())
            self._stack.callback(watch.cancel)
        self.metrics.compiled_check_failed.set(float(engine.compiled_check_failed))
        runtime.engine_ready = True
        self.health.set_ready(True)
        self.metrics.ready.set_function(lambda: float(self.health.ready))
        self.metrics.engine_healthy.set_function(lambda: float(self.health.alive and not engine.is_dead))
        self.metrics.kernels_compiled.read = lambda: float(engine.kernels_compiled)
        self.metrics.reused_rows.read = lambda: float(engine.reused_rows[0])
        self.metrics.reused_row_bytes.read = lambda: float(engine.reused_rows[1])
        self.metrics.waiting_requests.set_function(lambda: float(engine.waiting_requests))
        self.ports = Ports(grpc_port, health_port, metrics_port)
        _log.info("ready", extra={"grpc": grpc_port, "health": health_port, "metrics": metrics_port})
        return self.ports

    async def serve(self, stop: asyncio.Event, abort: asyncio.Event) -> ExitCode:
        """Serve until `stop` is set or the engine dies. After `stop`, drain; `abort` cuts the drain short. Returns the
        exit code."""
        dead = asyncio.Event()
        watchdog = asyncio.create_task(self._watch(dead))
        waits = {asyncio.create_task(stop.wait()), asyncio.create_task(dead.wait())}
        try:
            done, _ = await asyncio.wait({*waits, watchdog}, return_when=asyncio.FIRST_COMPLETED)
            if self.held is not None:
                self.held.end()
            if watchdog in done:
                watchdog.result()
            if dead.is_set():
                return await self._end_dead()
            timeouts = self.config.timeouts
            drained = asyncio.create_task(
                drain(
                    self.health,
                    self.in_flight,
                    close_port=self._close_port,
                    notice_s=timeouts.drain_notice,
                    grace_s=timeouts.request,
                    abort=abort,
                )
            )
            await asyncio.wait({drained, watchdog}, return_when=asyncio.FIRST_COMPLETED)
            if dead.is_set() and not drained.done():
                drained.cancel()
                return await self._end_dead()
            await drained
            return ExitCode.ABORTED if abort.is_set() else ExitCode.DRAINED
        finally:
            for task in (*waits, watchdog):
                task.cancel()

    def warm_media(self) -> None:
        """Start a media worker if the model takes media, so that the first request does not wait for it."""
        runtime = self.runtime
        if runtime is not None and isinstance(runtime.engine.component, TakesMedia):
            task = asyncio.create_task(runtime.media.warm())
            self._stack.callback(task.cancel)

    async def close(self) -> None:
        """Close the ports and end the engine."""
        await self._stack.aclose()
        if self._engine is not None:
            try:
                async with asyncio.timeout(ENGINE_STOP_S):
                    await self._engine.shutdown()
            except TimeoutError:
                _log.error("the engine did not stop in time", extra={"limit_s": ENGINE_STOP_S})

    def _close_port(self) -> None:
        """Accept no further connections, and send GOAWAY on those that exist. Calls in flight continue."""
        if self._main is not None:
            # The drain does not wait for this task, which lasts as long as health watches: until the grace period ends,
            # or until `close`.
            self._closing = asyncio.create_task(self._main.stop(self.config.timeouts.request + CLOSE_SLACK_S))

    async def _load_certificate(self) -> ServingCertificate | None:
        tls = self.config.listen.tls
        if tls is None:
            return None
        # Imported only here, because most stages have no certificate.
        from omni_stage.service.server.tls import ServingCertificate

        return await asyncio.to_thread(ServingCertificate, tls, self._registry)

    async def _watch(self, dead: asyncio.Event) -> None:
        if self._engine is None:
            raise RuntimeError("serve needs a started stage server")
        limit = self.config.timeouts.step or self._engine.component.facts.step_timeout_s

        async def on_death() -> None:
            dead.set()

        await Watchdog(self._engine, limit, self.in_flight, self.health, self.config.stage).run(on_death)

    async def _end_dead(self) -> ExitCode:
        # The watchdog has just failed all calls; let their statuses reach the callers.
        await self.in_flight.wait_idle(2.0)
        message = f"the engine of stage {self.config.stage!r} died"
        write_termination(TerminationReason.ENGINE_DEAD, message)
        return ExitCode.ENGINE_DEAD

    def _build_runtime(self, engine: StageEngine, tracing: StageTracing) -> StageRuntime:
        admission, limits = self.admission, self.config.limits
        slots = count_start_slots(limits.max_concurrent_requests, admission.max_bytes, limits.max_message_bytes)
        self.metrics.inflight_bytes.set_function(lambda: float(admission.bytes))
        self.metrics.inflight_bytes_limit.set(admission.max_bytes)
        load = LoadMeter(admission, kv_reader(engine, self._registry))
        self.health.main.load = load
        self.metrics.engine_waiting.read = lambda: load.count_seconds()[0]
        self.metrics.engine_running.read = lambda: load.count_seconds()[1]
        self.metrics.engine_limit.set(find_request_limit(engine, limits.max_concurrent_requests))
        return StageRuntime(
            config=self.config,
            engine=engine,
            admission=admission,
            in_flight=self.in_flight,
            channels=DownstreamChannels(
                {edge.stage: edge.target for edge in self.config.downstream},
                on_choice=self.metrics.pod_chosen,
                on_ejection=self.metrics.pod_ejected,
            ),
            metrics=self.metrics,
            load=load,
            starting=CallQuota("calls without Start", slots),
            tracing=tracing,
        )


async def run_stage(
    config: StageConfig,
    build_engine: EngineBuilder,
    address_file: Path | None,
    compiled: SharedCompileCache | None = None,
) -> ExitCode:
    """Run a stage server until a signal arrives or its engine dies. Returns the exit code of the process.

    `compiled`: where the compiled code is shared once the stage is ready.
    """
    stop, abort = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    _install_signals(loop, stop, abort)
    server = StageServer(config, prometheus_client.REGISTRY)
    try:
        started = asyncio.create_task(server.start(build_engine))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({started, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not started.done():
            _log.info("stopped while the engine was loading")
            started.cancel()
            await asyncio.wait({started}, timeout=ENGINE_STOP_S)
            return ExitCode.DRAINED
        ports = started.result()
        if address_file is not None:
            ports.write(address_file)
        server.warm_media()
        if compiled is not None:
            # A thread that does not keep the process alive: an archive that is cut short is never seen by others.
            threading.Thread(target=compiled.save, name="compile-cache", daemon=True).start()
        # Install the handlers again, because engines install signal handlers of their own while they load.
        _install_signals(loop, stop, abort)
        return await server.serve(stop, abort)
    except OmniStageError as error:
        return report_start_failure(error)
    finally:
        await server.close()


def _install_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, abort: asyncio.Event) -> None:
    """Make the first SIGTERM or SIGINT drain the stage, and the second cut the drain short."""

    def on_signal() -> None:
        (abort if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
