"""gRPC's own weighted_round_robin reads our reports; TLS names hold on the channels to single pods."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest

from omni_proto.client import AsyncOmniClient, ClientTls, OmniClient
from omni_proto.rpc.balance import watch
from omni_proto.rpc.balance.report import LoadReport
from omni_proto.stage.v1 import events_pb2, stage_service_pb2 as pb, stage_service_pb2_grpc
from support.peers.certificates import Authority
from support.processes.polling import PATIENCE_S, until


class Pod(stage_service_pb2_grpc.StageServiceServicer):
    """Answers at once and reports a fixed load."""

    def __init__(self, utilization: float) -> None:
        self._report = LoadReport(running=1, utilization=utilization, per_second=10.0)
        self.calls = 0

    async def Generate(self, requests: object, context: grpc.aio.ServicerContext) -> None:
        self.calls += 1
        context.set_trailing_metadata(self._report.to_trailer())
        await context.write(pb.GenerateResponse(stage="thinker", accepted=events_pb2.Accepted()))
        await context.write(pb.GenerateResponse(stage="thinker", summary=events_pb2.Summary()))


async def serve(pod: Pod, credentials: grpc.ServerCredentials | None = None) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    stage_service_pb2_grpc.add_StageServiceServicer_to_server(pod, server)
    address = "127.0.0.1:0"
    port = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    await server.start()
    return server, port


async def test_grpcs_weighted_round_robin_reads_the_reports() -> None:
    pods = [Pod(0.9), Pod(0.1)]
    servers = [await serve(pod) for pod in pods]
    policy = {"weighted_round_robin": {"blackoutPeriod": "0.1s", "weightUpdatePeriod": "0.1s"}}
    options = [("grpc.service_config", json.dumps({"loadBalancingConfig": [policy]}))]
    target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for _, port in servers)
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        stub = stage_service_pb2_grpc.StageServiceStub(channel)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                before = [pod.calls for pod in pods]
                for _ in range(40):
                    async for _message in stub.Generate(iter([pb.GenerateRequest()])):
                        pass
                busy, idle = (pod.calls - then for pod, then in zip(pods, before, strict=True))
                # Without weights the calls alternate: 20 and 20.
                if idle > 3 * busy > 0:
                    break
                await asyncio.sleep(0.05)
    for server, _ in servers:
        await server.stop(None)


@pytest.mark.parametrize("server_name", ["", "localhost"])
async def test_certificates_are_checked_against_the_name_of_the_stage(
    server_name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority("ours")
    pair = authority.issue()
    ca = tmp_path_factory.mktemp("ca") / "ca.crt"
    ca.write_bytes(authority.certificate)
    pods = [Pod(0.5), Pod(0.5)]
    servers = [await serve(pod, grpc.ssl_server_credentials([(pair.key, pair.certificate)])) for pod in pods]
    found = tuple(f"ipv4:127.0.0.1:{port}" for _, port in servers)
    monkeypatch.setattr(watch, "resolver_of", lambda target: lambda: found)
    name = "localhost" if not server_name else "127.0.0.1"
    target, tls = f"{name}:{servers[0][1]}", ClientTls(ca=ca, server_name=server_name)
    async with AsyncOmniClient(target, tls=tls) as client:
        await client.run(text="a")
        await until(lambda: client._pool.connected == 2)
        for number in range(40):
            await client.run(text=str(number))
    with OmniClient(target, tls=tls) as blocking:
        await asyncio.to_thread(lambda: blocking.run(text="a"))
        await until(lambda: blocking._pool.connected == 2)
    assert min(pod.calls for pod in pods) > 0
    for server, _ in servers:
        await server.stop(None)
