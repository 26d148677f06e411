"""API clients in a fresh namespace, one of them behind a proxy that fails on demand."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from omni_kube.api.client import ApiClient
from support.controlplane.server.api import Api
from support.controlplane.server.api_clients import grant, make_client
from support.controlplane.server.api_server import ApiServer
from support.controlplane.server.fault_proxy import FaultProxy

_numbers = itertools.count()


@pytest.fixture
def space(api_server: ApiServer) -> Api:
    """Returns the administrator's client in a fresh namespace."""
    return api_server.create_namespace(f"client-{next(_numbers)}")


@pytest.fixture
def faulty(api_server: ApiServer) -> Iterator[FaultProxy]:
    with FaultProxy(api_server, silence_s=0.5) as proxy:
        yield proxy


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[ApiClient]:
    made = await make_client(api_server.kubeconfig)
    yield made
    await made.transport.close()


@pytest.fixture
async def faulty_client(api_server: ApiServer, space: Api, faulty: FaultProxy) -> AsyncIterator[ApiClient]:
    """Yields a client that goes through the proxy and may do everything in the namespace."""
    grant(space)
    made = await make_client(api_server.kubeconfig_for_service_account(space.namespace, "robot", server=faulty.url))
    yield made
    await made.transport.close()
