"""Where the Service of a pipeline without pods leads: to the gateway's activator, by EndpointSlices. Pure functions.

A caller then gets an answer, which says when to call again, and wakes the pipeline. The Service keeps its selector, and
Kubernetes' own EndpointSlices of its pods stay as they are: once the entry's pod is ready, both are endpoints until the
operator has seen that all stages are, and removes its own.

Only the Service with a cluster IP leads there. Callers of the headless one connect to port 50051 of the addresses in
DNS, and the gateway itself is one of them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from omni_kube.objects import Manifest, is_terminating
from omni_operator.desired.build_settings import Owner
from omni_operator.desired.metadata import owner_reference
from omni_operator.kinds import ENDPOINT_SLICES, FIELD_MANAGER, SLICE_MANAGER_LABEL, SLICE_SERVICE_LABEL
from omni_operator.names import child_labels, entry_service_name
from omni_operator.state.observed import Observed
from omni_proto.pod_contract import GRPC_PORT_NAME


class Activator(NamedTuple):
    """The gateway's pods, to which callers of a pipeline without pods are led."""

    addresses: tuple[str, ...] = ()
    port: int = 0


class SliceWrites(NamedTuple):
    """What to write."""

    apply: Sequence[tuple[Manifest, str]]
    """EndpointSlices, each with the uid of the live one; empty if there is none."""
    delete: Sequence[Manifest]
    """Live EndpointSlices."""


def plan_activation(observed: Observed, activator: Activator, *, is_away: bool) -> SliceWrites:
    """Returns the writes after which the pipeline's Service leads to the activator exactly while it has no pods.

    is_away: whether it sleeps or wakes."""
    owner = Owner(observed.name, observed.namespace, observed.uid)
    wanted = {one["metadata"]["name"]: one for one in _build(owner, activator)} if is_away else {}
    live = {one["metadata"]["name"]: one for one in observed.activations if observed.owns(one)}
    return SliceWrites(
        [
            (one, live[name]["metadata"]["uid"] if name in live else "")
            for name, one in wanted.items()
            if name not in live or _leads_to(live[name]) != _leads_to(one)
        ],
        [one for name, one in live.items() if name not in wanted and not is_terminating(one)],
    )


def _build(owner: Owner, activator: Activator) -> list[Manifest]:
    labels = {
        **child_labels(owner.name),
        SLICE_SERVICE_LABEL: entry_service_name(owner.name),
        SLICE_MANAGER_LABEL: FIELD_MANAGER,
    }
    found = []
    for version in (4, 6):
        addresses = [one for one in activator.addresses if ipaddress.ip_address(one).version == version]
        if not addresses:
            continue
        metadata = {
            "name": f"{owner.name}-activator-ipv{version}",
            "namespace": owner.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(owner)],
        }
        found.append(
            {
                "apiVersion": ENDPOINT_SLICES.api_version,
                "kind": ENDPOINT_SLICES.kind,
                "metadata": metadata,
                "addressType": f"IPv{version}",
                "ports": [{"name": GRPC_PORT_NAME, "port": activator.port, "protocol": "TCP"}],
                "endpoints": [{"addresses": [one], "conditions": {"ready": True}} for one in sorted(addresses)],
            }
        )
    return found


def _leads_to(manifest: Manifest) -> tuple[list[str], list[int]]:
    addresses = [one for endpoint in manifest.get("endpoints") or () for one in endpoint.get("addresses") or ()]
    return addresses, [port.get("port", 0) for port in manifest.get("ports") or ()]
