"""OmniClient: the blocking client of a pipeline."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from omni_proto.client.attempts import Attempts
from omni_proto.client.connection import ClientTls, plan_connection
from omni_proto.client.errors import closed_error, error_from_rpc
from omni_proto.client.events import Event
from omni_proto.client.messages import PreparedRequest, affinity_of, check_timeout, prepare_call
from omni_proto.client.prompt import GenerateArguments, Metadata
from omni_proto.client.result import GenerationResult, ResultBuilder
from omni_proto.rpc.balance.choice import Affinity
from omni_proto.rpc.balance.report import find_report
from omni_proto.rpc.balance.watch import borrow, open_pool
from omni_proto.rpc.channels import Loan
from omni_proto.rpc.options import Options
from omni_proto.rpc.retry import is_unreached
from omni_proto.stage.v1 import stage_service_pb2, stage_service_pb2_grpc
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest


class OmniClient:
    """Calls the entry stage of a pipeline. Use as a context manager, or call close(). Threads may share it.

    target is a gRPC target, e.g. "localhost:50051" or "dns:///qwen.default.svc.cluster.local.:50051", or the url of a
    pipeline's status: grpc://HOST:PORT, grpcs://HOST:PORT for TLS. tls turns on TLS for any target: True trusts the
    public CAs, ClientTls can name others. credentials are gRPC's own and are given instead of tls. options replace
    channel_options(), except the options that keep gRPC from crashing. Raises ArgumentError.
    """

    def __init__(
        self,
        target: str,
        *,
        tls: ClientTls | bool | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        options: Options | None = None,
    ) -> None:
        plan = plan_connection(target, tls=tls, credentials=credentials, options=options)
        self._target = plan.target
        self._pool = open_pool(plan.target, plan.credentials, plan.options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        for channel in self._pool.close():
            channel.close()

    def get_stage(
        self, *, timeout: float | None = 10.0, wait_for_ready: bool = False
    ) -> stage_service_pb2.GetStageResponse:
        """Returns the entry stage's description. With wait_for_ready, waits up to timeout seconds for its server.

        Raises OmniRequestError; ArgumentError if timeout is not positive.
        """
        with self._borrow() as loan:
            try:
                response: stage_service_pb2.GetStageResponse = _stub(loan.channel).GetStage(
                    stage_service_pb2.GetStageRequest(), timeout=check_timeout(timeout), wait_for_ready=wait_for_ready
                )
            except grpc.RpcError as error:
                loan.unreached = is_unreached(error)
                raise error_from_rpc(error, target=self._target) from error
        return response

    def generate(self, **arguments: Unpack[GenerateArguments]) -> Generator[Event, None, None]:
        """Run a request. Returns a generator of its events as they arrive. GenerateArguments documents the arguments.

        Give exactly one prompt: text, chat, raw_text, token_ids or prompt_embeds. Closing the generator cancels the
        call in all stages. Python also closes it when the last reference to it is gone, for example when a `for` loop
        over generate() is left. Before Accepted, a call that fails with UNAVAILABLE, with RESOURCE_EXHAUSTED and
        RetryInfo, or with CANCELLED by the server is retried, with at most 3 attempts. After Accepted nothing is
        retried. Raises ArgumentError immediately, OmniRequestError while iterating.
        """
        call = prepare_call(arguments)
        return self._events(call.request, call.metadata, call.timeout_s)

    def run(self, **arguments: Unpack[GenerateArguments]) -> GenerationResult:
        """Run a request to its end. Returns the complete answer. Takes the same arguments and raises the same errors as
        generate()."""
        builder = ResultBuilder()
        events = self.generate(**arguments)
        del arguments  # otherwise their media would stay in memory until the call ends
        try:
            for event in events:
                builder.add(event)
        finally:
            events.close()
        return builder.result()

    def _events(
        self, prepared: PreparedRequest, metadata: Metadata, timeout_s: float | None
    ) -> Generator[Event, None, None]:
        attempts = Attempts(timeout_s, target=self._target)
        affinity, tried = affinity_of(prepared.start), set[str]()
        while True:
            with self._borrow(affinity, tried) as loan:
                gate = threading.Event()
                call = _stub(loan.channel).Generate(_write(prepared, gate), timeout=attempts.begin(), metadata=metadata)
                try:
                    for response in call:
                        event = attempts.take(response)
                        self._pool.note_message(loan)
                        if not gate.is_set():
                            gate.set()
                            self._pool.note_report(loan, find_report(call.initial_metadata()))
                            del prepared  # it is not sent again; without this, its media would stay in memory
                        if event is not None:
                            yield event
                    attempts.finish()
                    loan.complete, loan.report = True, find_report(call.trailing_metadata())
                    return
                except grpc.RpcError as error:
                    loan.unreached, loan.is_fault = attempts.is_unreached(error), attempts.is_fault(error)
                    loan.report = find_report(error.trailing_metadata())
                    tried.add(loan.pod)
                    wait_s = attempts.fail(error, closed=self._pool.closed)
                finally:
                    call.cancel()  # no effect on a call that has ended
                    gate.set()
            time.sleep(wait_s)

    @contextmanager
    def _borrow(self, affinity: Affinity | None = None, tried: Collection[str] = ()) -> Iterator[Loan[grpc.Channel]]:
        """Yields a channel for one call. Raises OmniRequestError if the client is closed."""
        if self._pool.closed:
            raise closed_error()
        with borrow(self._pool, affinity, tried) as loan:
            yield loan


def _stub(channel: grpc.Channel) -> Any:
    return stage_service_pb2_grpc.StageServiceStub(channel)  # type: ignore[no-untyped-call]


def _write(prepared: PreparedRequest, gate: threading.Event) -> Generator[GenerateRequest, None, None]:
    """Yields Start, then the other messages once the gate is set: see attempts.py. Runs on one of gRPC's threads."""
    messages = prepared.messages()
    yield next(messages)
    gate.wait()
    yield from messages
