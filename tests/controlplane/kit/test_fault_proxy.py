"""The fault proxy injects exactly the requested faults, and otherwise changes nothing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import urllib3

from support.controlplane.server.api import Api, ApiError, Manifest, eventually
from support.controlplane.server.api_server import ApiServer
from support.controlplane.server.fault_proxy import FaultProxy
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

_numbers = itertools.count(1)


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[FaultProxy]:
    with FaultProxy(api_server, silence_s=0.2) as running:
        yield running


@pytest.fixture
def through(api_server: ApiServer, proxy: FaultProxy) -> Iterator[Callable[[], Api]]:
    """Yields a function that returns a new client. The client goes through the proxy as cluster-admin."""
    direct = api_server.create_namespace(f"proxy-{next(_numbers)}")
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": direct.namespace},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": direct.namespace}],
        "roleRef": {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"},
    }
    direct.create(binding)
    kubeconfig = api_server.kubeconfig_for_service_account(direct.namespace, "robot", server=proxy.url)
    yield lambda: Api(kubeconfig, direct.namespace)
    direct.delete("ClusterRoleBinding", direct.namespace)
    direct.delete("Namespace", direct.namespace)


def config_map(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def test_everything_passes_and_is_recorded(proxy: FaultProxy, through: Callable[[], Api]) -> None:
    api = through()
    api.apply(config_map("a"))
    assert [m["metadata"]["name"] for m in api.list("ConfigMap", labels="!x")] == ["a"]
    with pytest.raises(ApiError, match="404 NotFound"):
        api.get("ConfigMap", "b")
    assert [(c.verb, c.resource, c.status, c.write) for c in proxy.calls] == [
        ("patch", "configmaps", 201, True),
        ("list", "configmaps", 200, False),
        ("get", "configmaps", 404, False),
    ]


@pytest.mark.parametrize("fault", ["409", "429", "500"])
def test_refused(proxy: FaultProxy, through: Callable[[], Api], fault: Any) -> None:
    api = through()
    proxy.fail(1.0, [fault])
    with pytest.raises(ApiError, match=f"{fault} .*made up"):
        api.apply(config_map("a"))
    proxy.fail(0)
    assert api.list("ConfigMap") == []


@pytest.mark.parametrize(("fault", "executed"), [("silence", 0), ("lost answer", 1)])
def test_no_answer(proxy: FaultProxy, through: Callable[[], Api], fault: Any, executed: int) -> None:
    api = through()
    proxy.fail(1.0, [fault])
    with pytest.raises(urllib3.exceptions.HTTPError):
        api.apply(config_map("a"))
    proxy.fail(0)
    assert len(api.list("ConfigMap")) == executed


def test_a_share_of_the_calls_fails(proxy: FaultProxy, through: Callable[[], Api]) -> None:
    api = through()
    proxy.fail(0.3, ["500"], seed=7)
    failed = 0
    for _ in range(200):
        try:
            api.list("ConfigMap")
        except ApiError:
            failed += 1
    assert 40 <= failed <= 80


@pytest.mark.parametrize("gone", [False, True], ids=["cut", "410 Gone"])
def test_watches_end(proxy: FaultProxy, through: Callable[[], Api], gone: bool) -> None:
    api = through()
    events: list[Manifest] = []
    ended = threading.Event()

    def follow() -> None:
        try:
            events.extend(api.watch("ConfigMap"))
        except urllib3.exceptions.HTTPError:
            pass
        finally:
            ended.set()

    threading.Thread(target=follow, daemon=True).start()
    eventually(lambda: any(c.watch and c.status == 200 for c in proxy.calls))
    eventually(lambda: (proxy.expire_watches if gone else proxy.cut_watches)() == 1)
    assert ended.wait(PATIENCE_S)
    assert [e["object"]["code"] for e in events if e["type"] == "ERROR"] == ([410] if gone else [])


def test_held_watches_say_everything_at_once(proxy: FaultProxy, through: Callable[[], Api]) -> None:
    api = through()
    seen: list[str] = []

    def follow() -> None:
        with suppress(urllib3.exceptions.HTTPError):  # the end of the watch
            for event in api.watch("ConfigMap"):
                seen.append(event["object"]["metadata"]["name"])

    proxy.hold_watches("configmaps")
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    eventually(lambda: any(c.watch and c.status == 200 for c in proxy.calls))
    for name in ("a", "b"):
        api.apply(config_map(name))
    assert seen == []
    proxy.flow()
    eventually(lambda: len(seen) == 2)
    assert seen == ["a", "b"]
    proxy.cut_watches()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_away_and_back(proxy: FaultProxy, through: Callable[[], Api]) -> None:
    api = through()
    proxy.go_away()
    with pytest.raises(urllib3.exceptions.HTTPError):
        api.list("ConfigMap")
    proxy.come_back()
    assert api.list("ConfigMap") == []


def test_stop_after_the_second_write(api_server: ApiServer, proxy: FaultProxy, through: Callable[[], Api]) -> None:
    api, direct = through(), api_server.admin.in_namespace(through().namespace)
    proxy.stop_after_write(2)
    api.apply(config_map("a"))
    done = threading.Event()

    def write_on() -> None:
        for name in ("b", "c"):
            try:
                api.apply(config_map(name))
            except urllib3.exceptions.HTTPError:
                break
        done.set()

    threading.Thread(target=write_on, daemon=True).start()
    assert proxy.stopped.wait(PATIENCE_S)
    assert not done.is_set()
    assert [m["metadata"]["name"] for m in direct.list("ConfigMap")] == ["a", "b"]
    proxy.release()
    assert done.wait(PATIENCE_S)
    assert len(through().list("ConfigMap")) == 2
