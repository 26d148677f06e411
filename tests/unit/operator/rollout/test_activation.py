"""Where the Service of a pipeline leads while it has no pods: which EndpointSlices are written, which removed."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from omni_kube.objects import Manifest, NamespacedName
from omni_kube.store import Seen
from omni_operator.desired.build_settings import Owner
from omni_operator.desired.metadata import owner_reference
from omni_operator.process.activators import Activators
from omni_operator.rollout.activation import Activator, plan_activation
from omni_operator.state.observe import new_store, observe_pipeline
from omni_operator.state.observed import Observed

PIPELINE: Manifest = {
    "apiVersion": "omnipipeline.io/v1alpha1",
    "kind": "OmniPipeline",
    "metadata": {"name": "demo", "namespace": "models", "uid": "u1", "resourceVersion": "5"},
}
BOTH = Activator(("10.0.0.2", "10.0.0.1", "fd00::1"), 50051)
ONE = Activator(("10.0.0.1",), 50051)


def observe(*slices: Manifest) -> Observed:
    """Returns what the operator sees of the pipeline with these EndpointSlices, by way of its store."""
    store = new_store()
    store.put_seen(Seen.of(PIPELINE), "models")
    for number, manifest in enumerate(slices):
        metadata = {"uid": f"s{number}", "resourceVersion": str(10 + number), **manifest["metadata"]}
        store.put_seen(Seen.of({**manifest, "metadata": metadata}), "models")
    observed = observe_pipeline(store, NamespacedName("models", "demo"))
    assert observed is not None
    return observed


def written(activator: Activator) -> list[Manifest]:
    return [manifest for manifest, _ in plan_activation(observe(), activator, is_away=True).apply]


def test_a_pipeline_without_pods_leads_to_every_pod_of_the_gateway() -> None:
    four, six = written(BOTH)
    assert [four["metadata"]["name"], six["metadata"]["name"]] == ["demo-activator-ipv4", "demo-activator-ipv6"]
    assert [one["addresses"] for one in four["endpoints"]] == [["10.0.0.1"], ["10.0.0.2"]]
    assert (four["addressType"], four["ports"][0]["port"]) == ("IPv4", 50051)
    assert four["metadata"]["labels"]["kubernetes.io/service-name"] == "demo", "the Service with a cluster IP"
    assert four["metadata"]["ownerReferences"] == [owner_reference(Owner("demo", "models", "u1"))]


def test_what_is_right_is_not_written_again_and_ends_when_pods_serve() -> None:
    observed = observe(*written(BOTH))
    assert plan_activation(observed, BOTH, is_away=True) == ([], [])
    ((changed, uid),) = plan_activation(observed, ONE._replace(addresses=("10.0.0.1", "fd00::1")), is_away=True).apply
    assert (changed["metadata"]["name"], uid) == ("demo-activator-ipv4", "s0")
    serving = plan_activation(observed, BOTH, is_away=False)
    assert (list(serving.apply), {one["metadata"]["uid"] for one in serving.delete}) == ([], {"s0", "s1"})
    assert plan_activation(observe(), BOTH, is_away=False) == ([], [])


def test_without_a_gateway_it_leads_nowhere() -> None:
    assert plan_activation(observe(), Activator(), is_away=True) == ([], [])
    gone = plan_activation(observe(*written(ONE)), Activator(), is_away=True)
    assert [one["metadata"]["name"] for one in gone.delete] == ["demo-activator-ipv4"]


def test_it_is_no_endpoint_of_a_pod_and_those_of_others_are_left_alone() -> None:
    (own,) = written(ONE)
    labels = {**own["metadata"]["labels"], "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}
    pods: dict[str, Any] = {**own, "metadata": {"name": "demo-x1", "namespace": "models", "labels": labels}}
    foreign = {**own, "metadata": {**own["metadata"], "name": "demo-activator-ipv6", "ownerReferences": []}}
    observed = observe(own, pods, foreign)
    assert observed.endpoints == {"demo": 1}
    assert [one["metadata"]["uid"] for one in plan_activation(observed, ONE, is_away=False).delete] == ["s0"]


@pytest.mark.parametrize(
    ("answer", "addresses"),
    [
        (["10.0.0.2", "10.0.0.1", "10.0.0.2"], ("10.0.0.1", "10.0.0.2")),
        (socket.gaierror(socket.EAI_NONAME, "no pod is ready"), ()),
        (socket.gaierror(socket.EAI_AGAIN, "the DNS server does not answer"), ("10.0.0.9",)),
    ],
)
async def test_the_addresses_are_those_of_the_ready_pods(
    answer: Any, addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_up(*_: object, **__: object) -> list[Any]:
        if isinstance(answer, OSError):
            raise answer
        return [(socket.AF_INET, None, 6, "", (one, 0)) for one in answer]

    changes: list[int] = []
    activators = Activators("gateway-replicas.system.svc:50051", lambda: changes.append(1))
    activators.current = Activator(("10.0.0.9",), 50051)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    await activators.look_up()
    assert activators.current == Activator(addresses, 50051)
    assert len(changes) == (addresses != ("10.0.0.9",))


async def test_without_an_address_nothing_is_looked_up() -> None:
    await Activators(None, lambda: None).run()
