"""Client, reflector and election against a real API server, with a faulty proxy where faults are needed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from datetime import datetime
from pathlib import Path

import pytest

import omni_kube.client as client_module
from omni_kube.client import ApiClient
from omni_kube.connection import load_connection
from omni_kube.errors import (
    ConflictError,
    CredentialsError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    NotLeaderError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreachableError,
)
from omni_kube.lease import LEASE, Leadership, LeaseTimes
from omni_kube.objects import Manifest, NamespacedName, ObjectKey, ObjectKind
from omni_kube.pacing import Backoff, RateLimiter
from omni_kube.reflector import Reflector
from omni_kube.seen import Root
from omni_kube.store import Store
from omni_kube.transport import Transport
from omni_operator.kinds import CHILD_KINDS, FIELD_MANAGER, KIND_BY_NAME, PIPELINES
from omni_operator.process.metrics import Metrics
from omni_proto.pod_contract import PIPELINE_LABEL
from support.controlplane.api import Api
from support.controlplane.api_server import ApiServer
from support.controlplane.fault_proxy import FaultProxy
from support.controlplane.pipelines import build_pipeline

pytestmark = pytest.mark.controlplane

CONFIG_MAP = KIND_BY_NAME["ConfigMap"]
SECRET = ObjectKind("Secret", "v1", "secrets")
DEADLINE_S = 30.0
_numbers = itertools.count()


async def until(probe: Callable[[], object], why: str) -> None:
    """Return once probe() holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not probe():  # noqa: ASYNC110 - the probe asks the outside
            await asyncio.sleep(0.02)
    assert probe(), why


def config_map(api: Api, name: str = "x", pipeline: str = "p", **data: str) -> Manifest:
    metadata = {"name": name, "namespace": api.namespace, "labels": {PIPELINE_LABEL: pipeline}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data or {"a": "b"}}


@pytest.fixture
def space(api_server: ApiServer) -> Iterator[Api]:
    """The administrator in a fresh namespace."""
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
    """A client behind the proxy that may do everything in the namespace."""
    grant(space)
    made = await make_client(api_server.kubeconfig_for_service_account(space.namespace, "robot", server=faulty.url))
    yield made
    await made.transport.close()


async def make_client(kubeconfig: Path, may_write: Callable[[], float] = lambda: 15.0) -> ApiClient:
    transport = Transport(await load_connection(kubeconfig, FIELD_MANAGER), Metrics())
    return ApiClient(transport, RateLimiter(1000, 1000), may_write)


def grant(space: Api) -> None:
    space.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "robot"},
            "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": space.namespace}],
            "roleRef": {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"},
        }
    )


# Client


async def test_apply_get_delete(client: ApiClient, space: Api) -> None:
    made = await client.apply_new(CONFIG_MAP, config_map(space))
    again = await client.apply(CONFIG_MAP, config_map(space), made["metadata"]["uid"])
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    fields = space.get("ConfigMap", "x")["metadata"]["managedFields"]
    assert [(entry["manager"], entry["operation"]) for entry in fields] == [("omnipipeline-operator", "Apply")]
    assert await client.get(CONFIG_MAP, space.namespace, "x") is not None
    uid = made["metadata"]["uid"]
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAP, space.namespace, "x", uid="0b5d6a5e-0000-0000-0000-000000000000")
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAP, space.namespace, "x", uid=uid, version="1")
    assert await client.delete(CONFIG_MAP, space.namespace, "x", uid=uid) is not None
    assert await client.delete(CONFIG_MAP, space.namespace, "x", uid=uid) is None
    assert await client.get(CONFIG_MAP, space.namespace, "x") is None


SMALLEST: dict[str, Manifest] = {
    "ServiceAccount": {"automountServiceAccountToken": False},
    "ConfigMap": {"data": {"a": "b"}},
    "ControllerRevision": {"revision": 1, "data": {"a": 1}},
    "Service": {"spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}},
    "NetworkPolicy": {"spec": {"podSelector": {}}},
    "Deployment": {
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "main", "image": "example.com/a:1"}]},
            },
        }
    },
    "PodDisruptionBudget": {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}},
    "OmniPipeline": build_pipeline(),
}


@pytest.mark.parametrize(
    "kind", [*(kind for kind in CHILD_KINDS if not kind.optional), PIPELINES], ids=lambda k: k.kind
)
async def test_what_must_be_new_touches_nothing_that_exists(client: ApiClient, space: Api, kind: ObjectKind) -> None:
    metadata = {"name": "x", "namespace": space.namespace}
    manifest = {**SMALLEST[kind.kind], "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    made = await client.apply_new(kind, manifest)
    assert made["metadata"]["managedFields"][0]["operation"] == "Apply"
    with pytest.raises(ConflictError):
        await client.apply_new(kind, {**manifest, "metadata": {**metadata, "labels": {"later": "yes"}}})
    assert await client.get(kind, space.namespace, "x") == made


async def test_what_the_server_refuses(client: ApiClient, space: Api) -> None:
    with pytest.raises(InvalidError, match="daata"):
        await client.apply_new(CONFIG_MAP, config_map(space) | {"daata": {}})
    with pytest.raises(InvalidError, match="Invalid value"):
        await client.apply_new(CONFIG_MAP, config_map(space, "Not_A_Name"))
    with pytest.raises(NotFoundError):
        await client.apply_new(CONFIG_MAP, config_map(space) | {"metadata": {"name": "x", "namespace": "none-such"}})


async def test_a_watch_that_is_too_old(faulty_client: ApiClient, faulty: FaultProxy, space: Api) -> None:
    version = [page async for page in faulty_client.list_pages(CONFIG_MAP, space.namespace)][-1].version

    async def expire_at_the_first_event() -> None:
        async with aclosing(faulty_client.watch(CONFIG_MAP, space.namespace, version, 60)) as batches:
            async for events in batches:
                if events[0].type != "BOOKMARK":
                    await asyncio.to_thread(faulty.expire_watches)

    watching = asyncio.ensure_future(expire_at_the_first_event())
    space.apply(config_map(space))
    with pytest.raises(GoneError):
        await asyncio.wait_for(watching, DEADLINE_S)


async def test_who_may_not(api_server: ApiServer, space: Api) -> None:
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


async def test_lists_come_in_pages_of_one_state(client: ApiClient, space: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "METADATA_PAGE_SIZE", 2)
    for number in range(5):
        space.apply(config_map(space, f"x{number}"))
    space.apply(config_map(space, "foreign") | {"metadata": {"name": "foreign", "namespace": space.namespace}})
    pages = [page async for page in client.list_pages(CONFIG_MAP, space.namespace, PIPELINE_LABEL)]
    assert [len(page.items) for page in pages] == [2, 2, 1]
    assert len({page.version for page in pages}) == 1
    assert {item.key.name for page in pages for item in page.items} == {f"x{number}" for number in range(5)}
    read = pages[0].items[0].decode()
    assert (read["apiVersion"], read["kind"]) == ("v1", "ConfigMap"), "which items of lists do not say"
    assert "data" not in read, "metadata alone was asked for"


async def test_watch_tells_of_changes_however_large(client: ApiClient, space: Api) -> None:
    version = [page async for page in client.list_pages(CONFIG_MAP, space.namespace)][-1].version
    space.apply(config_map(space, "large", a="x" * 900_000))
    space.apply(config_map(space, "small"))
    space.delete("ConfigMap", "small")
    seen = []
    async with aclosing(client.watch(CONFIG_MAP, space.namespace, version, 60, PIPELINE_LABEL)) as batches:
        async for events in batches:
            for event in events:
                if event.type != "BOOKMARK":
                    assert event.seen is not None
                    seen.append((event.type, event.seen.key.kind, event.seen.key.name))
            if len(seen) == 3:
                break
    assert seen == [
        ("ADDED", "ConfigMap", "large"),
        ("ADDED", "ConfigMap", "small"),
        ("DELETED", "ConfigMap", "small"),
    ]


async def test_which_apis_there_are(client: ApiClient) -> None:
    assert await client.serves(CONFIG_MAP)
    assert not await client.serves(ObjectKind("PodMonitor", "no-such-group.example.com/v1", "podmonitors"))
    assert not await client.serves(ObjectKind("Nonsense", "apps/v1", "nonsenses"))


async def test_the_gate_is_asked_before_every_write(api_server: ApiServer, space: Api) -> None:
    def closed() -> float:
        raise NotLeaderError("not the leader")

    client = await make_client(api_server.kubeconfig, closed)
    with pytest.raises(NotLeaderError):
        await client.apply_new(CONFIG_MAP, config_map(space))
    with pytest.raises(NotLeaderError):
        await client.delete(CONFIG_MAP, space.namespace, "x", uid="u")
    assert await client.get(CONFIG_MAP, space.namespace, "x") is None
    await client.transport.close()


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
    """Else it might take effect when another operator leads already."""
    grant(space)
    kubeconfig = api_server.kubeconfig_for_service_account(space.namespace, "robot", server=faulty.url)
    client = await make_client(kubeconfig, lambda: 0.5)
    await client.get(CONFIG_MAP, space.namespace, "x")
    faulty.stop_after_write(1)
    with pytest.raises(UnreachableError, match="no answer in time"):
        await client.apply_new(CONFIG_MAP, config_map(space))
    faulty.release()
    await client.transport.close()


async def test_what_is_forced_is_forced_on_the_very_object_that_was_seen(client: ApiClient, space: Api) -> None:
    made = await client.apply_new(CONFIG_MAP, config_map(space))
    space.delete("ConfigMap", "x")
    with pytest.raises(ConflictError):
        await client.apply(CONFIG_MAP, config_map(space, a="ours"), made["metadata"]["uid"])
    assert space.find("ConfigMap", "x") is None, "one that is gone does not come back"
    space.create(config_map(space, a="theirs"))
    for attempt in (
        client.apply(CONFIG_MAP, config_map(space, a="ours"), made["metadata"]["uid"]),
        client.merge(CONFIG_MAP, config_map(space), {"data": {"a": "ours"}}, made["metadata"]["uid"]),
    ):
        with pytest.raises(ConflictError):
            await attempt
    assert space.get("ConfigMap", "x")["data"] == {"a": "theirs"}


async def test_the_time_is_the_api_servers(client: ApiClient, space: Api) -> None:
    await client.get(CONFIG_MAP, space.namespace, "x")
    made = space.create(config_map(space))
    created = datetime.fromisoformat(made["metadata"]["creationTimestamp"])
    assert abs((client.transport.clock.now(time.monotonic()) - created).total_seconds()) < 60


# Reflector


class Watched:
    """A reflector of ConfigMaps and what it told."""

    def __init__(self, client: ApiClient, space: Api, **options: object) -> None:
        self.store = Store(Root("OmniPipeline", PIPELINE_LABEL))
        self.told: list[NamespacedName] = []
        self.namespace = space.namespace
        self.reflector = Reflector(
            client,
            self.store,
            CONFIG_MAP,
            space.namespace,
            selector=PIPELINE_LABEL,
            on_change=self.told.extend,
            backoff=Backoff(0.05, 0.2),
            **options,  # type: ignore[arg-type]
        )
        self.task = asyncio.ensure_future(self.reflector.run())

    def names(self) -> set[str]:
        return {key.name for key in self.store.keys("ConfigMap")}

    def version(self, name: str) -> str:
        found = self.store.get(ObjectKey("ConfigMap", self.namespace, name))
        return found["metadata"]["resourceVersion"] if found else ""

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_reflector_follows(client: ApiClient, space: Api) -> None:
    space.apply(config_map(space, "before"))
    watched = Watched(client, space)
    await asyncio.wait_for(watched.reflector.synced.wait(), DEADLINE_S)
    assert watched.names() == {"before"}
    assert watched.told == [NamespacedName(space.namespace, "p")]
    space.apply(config_map(space, "after", "q"))
    await until(lambda: watched.names() == {"before", "after"}, "added")
    assert watched.told[-1] == NamespacedName(space.namespace, "q")
    changed = space.apply(config_map(space, "after", "q", a="c"))["metadata"]["resourceVersion"]
    await until(lambda: watched.version("after") == changed, "changed")
    space.delete("ConfigMap", "before")
    await until(lambda: watched.names() == {"after"}, "deleted")
    space.patch("ConfigMap", "after", {"metadata": {"labels": {PIPELINE_LABEL: None}}})
    await until(lambda: watched.names() == set(), "no longer selected")
    assert watched.reflector.age_s < DEADLINE_S
    assert watched.reflector.name == f"ConfigMap/{space.namespace}"
    await watched.stop()


async def test_reflector_goes_on_where_a_watch_ended(client: ApiClient, space: Api) -> None:
    watched = Watched(client, space, watch_timeout_s=1.0)
    await asyncio.wait_for(watched.reflector.synced.wait(), DEADLINE_S)
    for number in range(3):
        space.apply(config_map(space, f"x{number}"))
        await asyncio.sleep(0.7)
    await until(lambda: watched.names() == {"x0", "x1", "x2"}, "over several watches")
    assert watched.reflector.lists == 1
    await watched.stop()


async def test_reflector_finds_deletions_that_no_watch_told(
    faulty_client: ApiClient, faulty: FaultProxy, space: Api
) -> None:
    for name in ("kept", "lost"):
        space.apply(config_map(space, name, name))
    watched = Watched(faulty_client, space)
    await asyncio.wait_for(watched.reflector.synced.wait(), DEADLINE_S)
    faulty.go_away()
    space.delete("ConfigMap", "lost")
    await asyncio.sleep(0.3)
    watched.told.clear()
    faulty.come_back()
    await until(lambda: watched.names() == {"kept"}, "from the history of the API server")
    faulty.fail(1.0, ["500"])
    assert faulty.expire_watches() == 1
    space.delete("ConfigMap", "kept")
    space.apply(config_map(space, "new"))
    await until(lambda: any(call.fault == "500" for call in faulty.calls), "it tries")
    faulty.fail(0.0)
    await until(lambda: watched.names() == {"new"}, "from a new list")
    assert NamespacedName(space.namespace, "kept") in watched.told
    assert watched.reflector.lists == 2
    await watched.stop()


async def test_reflector_waits_for_its_rights(api_server: ApiServer, space: Api) -> None:
    client = await make_client(api_server.kubeconfig_for_service_account(space.namespace, "robot"))
    space.apply(config_map(space))
    watched = Watched(client, space)
    await asyncio.sleep(0.5)
    assert not watched.reflector.synced.is_set()
    grant(space)
    await asyncio.wait_for(watched.reflector.synced.wait(), DEADLINE_S)
    assert watched.names() == {"x"}
    await watched.stop()
    await client.transport.close()


# Election

QUICK = LeaseTimes(duration_s=1, renew_deadline_s=0.6, retry_s=0.1)


class Candidate:
    """One that takes part, and what it was told."""

    def __init__(self, client: ApiClient, space: Api, identity: str) -> None:
        self.told: list[bool] = []
        self.leadership = Leadership(
            client.transport,
            name="election",
            namespace=space.namespace,
            identity=identity,
            on_change=self.told.append,
            times=QUICK,
        )
        self.task = asyncio.ensure_future(self.leadership.run())

    @property
    def leads(self) -> bool:
        return self.leadership.is_leader

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_never_two_leaders(client: ApiClient, space: Api) -> None:
    candidates = [Candidate(client, space, f"c{number}") for number in range(3)]
    await until(lambda: any(candidate.leads for candidate in candidates), "one leads")
    for _ in range(3):
        (leader,) = (candidate for candidate in candidates if candidate.leads)
        leader.leadership.ensure()
        await leader.stop()  # without giving it up
        candidates.remove(leader)
        await until(lambda: not leader.leads, "its time runs out")  # noqa: B023
        with pytest.raises(NotLeaderError, match="does not hold the lease"):
            leader.leadership.ensure()
        if not candidates:
            break
        while not any(candidate.leads for candidate in candidates):
            await asyncio.sleep(0.02)
            assert sum(candidate.leads for candidate in (*candidates, leader)) <= 1
        assert sum(candidate.leads for candidate in candidates) == 1
    lease = await client.get(LEASE, space.namespace, "election")
    assert lease is not None
    assert lease["spec"]["leaseTransitions"] == 2


async def test_a_lease_that_is_given_up_is_free(client: ApiClient, space: Api) -> None:
    first = Candidate(client, space, "first")
    await until(lambda: first.leads, "leads")
    await first.stop()
    await first.leadership.release()
    await first.leadership.release()
    assert first.told == [True, False]
    assert not first.leadership.won.is_set()
    second = Candidate(client, space, "second")
    await until(lambda: second.leads, "leads")
    await second.stop()


async def test_a_lease_that_is_taken_or_deleted(client: ApiClient, space: Api) -> None:
    candidate = Candidate(client, space, "me")
    await until(lambda: candidate.leads, "leads")
    space.patch("Lease", "election", {"spec": {"holderIdentity": "other", "leaseDurationSeconds": 3600}})
    await until(lambda: not candidate.leads, "lost")
    await until(lambda: candidate.told == [True, False], "told so")
    space.delete("Lease", "election")
    await until(lambda: candidate.leads, "leads again")
    assert space.get("Lease", "election")["spec"]["holderIdentity"] == "me"
    await candidate.stop()


async def test_a_leader_that_is_cut_off_stops_in_time(faulty_client: ApiClient, faulty: FaultProxy, space: Api) -> None:
    candidate = Candidate(faulty_client, space, "me")
    await until(lambda: candidate.leads, "leads")
    faulty.go_away()
    await until(lambda: candidate.told == [True, False], "it stops by its own clock")
    faulty.come_back()
    await until(lambda: candidate.leads, "and goes on")
    await candidate.stop()
    faulty.go_away()
    await candidate.leadership.release()  # nobody hears it: no error
