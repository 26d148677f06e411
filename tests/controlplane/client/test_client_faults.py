"""The API client when the API server rejects a call, fails or does not answer: each fault has its error class."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from omni_kube.api.client import ApiClient
from omni_kube.api.transport import load_connection
from omni_kube.errors import (
    ConflictError,
    CredentialsError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreachableError,
)
from omni_operator.kinds import FIELD_MANAGER
from support.controlplane.server.api import Api
from support.controlplane.server.api_clients import CONFIG_MAP, config_map, grant, make_client
from support.controlplane.server.api_server import ApiServer
from support.controlplane.server.fault_proxy import FaultProxy
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane


async def test_what_the_server_refuses(client: ApiClient, space: Api) -> None:
    """An invalid object raises InvalidError. A namespace that does not exist raises NotFoundError."""
    with pytest.raises(InvalidError, match="daata"):
        await client.apply_new(CONFIG_MAP, config_map(space) | {"daata": {}})
    with pytest.raises(InvalidError, match="Invalid value"):
        await client.apply_new(CONFIG_MAP, config_map(space, "Not_A_Name"))
    with pytest.raises(NotFoundError):
        await client.apply_new(CONFIG_MAP, config_map(space) | {"metadata": {"name": "x", "namespace": "none-such"}})


async def test_a_watch_that_is_too_old(faulty_client: ApiClient, faulty: FaultProxy, space: Api) -> None:
    """A watch that the API server ends with 410 Gone raises GoneError."""
    version = [page async for page in faulty_client.list_pages(CONFIG_MAP, space.namespace)][-1].version

    async def expire_at_the_first_event() -> None:
        async with aclosing(faulty_client.watch(CONFIG_MAP, space.namespace, version, 60)) as batches:
            async for events in batches:
                if events[0].type != "BOOKMARK":
                    await asyncio.to_thread(faulty.expire_watches)

    watching = asyncio.ensure_future(expire_at_the_first_event())
    space.apply(config_map(space))
    with pytest.raises(GoneError):
        await asyncio.wait_for(watching, PATIENCE_S)


async def test_who_may_not(api_server: ApiServer, space: Api) -> None:
    """A write without RBAC rights raises ForbiddenError."""
    client = await make_client(api_server.kubeconfig_for_service_account(space.namespace, "nobody"))
    with pytest.raises(ForbiddenError) as caught:
        await client.apply_new(CONFIG_MAP, config_map(space))
    assert caught.value.status == 403
    await client.transport.close()


async def test_credentials_that_are_not_accepted(api_server: ApiServer, tmp_path: Path) -> None:
    good = api_server.kubeconfig_for_service_account("default", "someone").read_text()
    bad = tmp_path / "kubeconfig"
    bad.write_text(good.replace("token: ", "token: x"))
    client = await make_client(bad)
    with pytest.raises(UnauthorizedError):
        await client.get(CONFIG_MAP, "default", "x")
    await client.transport.close()


async def test_credentials_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CredentialsError):
        await load_connection(tmp_path / "nothing", FIELD_MANAGER)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    with pytest.raises(CredentialsError, match="cannot read the credentials"):
        await load_connection(None, FIELD_MANAGER)  # a pod without a token


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("409", ConflictError),
        ("429", TooManyRequestsError),
        ("500", ServerError),
        ("503", ServerError),
        ("silence", UnreachableError),
        ("lost answer", UnreachableError),
    ],
)
async def test_faults_have_classes(
    faulty_client: ApiClient, faulty: FaultProxy, space: Api, fault: str, error: type[Exception]
) -> None:
    """Each fault raises its error class. Only with the fault "lost answer" does the write take effect."""
    faulty.fail(1.0, [fault])  # type: ignore[list-item]
    with pytest.raises(error) as caught:
        await faulty_client.apply_new(CONFIG_MAP, config_map(space))
    if isinstance(caught.value, TooManyRequestsError):
        assert caught.value.retry_after_s == 1.0
    faulty.fail(0.0)
    assert (space.find("ConfigMap", "x") is not None) == (fault == "lost answer")


async def test_a_write_takes_no_longer_than_the_gate_allows(
    api_server: ApiServer, faulty: FaultProxy, space: Api
) -> None:
    """The gate (`may_write`) returns how many seconds a write may take.

    A later write could take effect under another leader.
    """
    grant(space)
    kubeconfig = api_server.kubeconfig_for_service_account(space.namespace, "robot", server=faulty.url)
    client = await make_client(kubeconfig, lambda: 0.5)
    await client.get(CONFIG_MAP, space.namespace, "x")
    faulty.stop_after_write(1)
    with pytest.raises(UnreachableError, match="no answer in time"):
        await client.apply_new(CONFIG_MAP, config_map(space))
    faulty.release()
    await client.transport.close()
