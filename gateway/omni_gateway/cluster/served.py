"""What an OmniPipeline says to a gateway. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from omni_gateway.pipelines import ServedPipeline
from omni_kube.objects import Manifest, ObjectKind, find_condition, is_terminating, parse_time, value_at
from omni_proto.client import ClientTls
from omni_proto.pod_contract import DOMAIN

PIPELINES: Final = ObjectKind("OmniPipeline", f"{DOMAIN}/v1alpha1", "omnipipelines")


def keep_what_matters(manifest: Manifest) -> Manifest:
    """Returns what of an OmniPipeline is kept in memory: neither its stages nor who wrote which field."""
    metadata = {
        name: value
        for name, value in manifest["metadata"].items()
        if name in ("name", "namespace", "creationTimestamp", "deletionTimestamp")
    }
    status = {
        name: value for name, value in value_at(manifest, "status", default={}).items() if name in ("url", "conditions")
    }
    return {"metadata": metadata, "status": status}


def read_pipeline(manifest: Manifest, entry_ca: str | None) -> ServedPipeline | None:
    """Returns how a pipeline is served; None if it has no address, or is being deleted.

    entry_ca: PEM file with the CAs of entries with TLS, None for the public ones.
    """
    url = value_at(manifest, "status", "url", default="")
    if not url or is_terminating(manifest):
        return None
    ready = find_condition(manifest, "Ready")
    metadata = manifest["metadata"]
    return ServedPipeline(
        name=metadata["name"],
        namespace=metadata["namespace"],
        endpoint=url,
        ready=ready is not None and ready.get("status") == "True",
        created=int(parse_time(metadata["creationTimestamp"]).timestamp()),
        tls=ClientTls(ca=entry_ca) if entry_ca and url.startswith("grpcs://") else None,
    )


def read_pipelines(manifests: Sequence[Manifest], entry_ca: str | None) -> tuple[ServedPipeline, ...]:
    """Returns how the pipelines are served, by namespace and name."""
    read = (read_pipeline(manifest, entry_ca) for manifest in manifests)
    return tuple(sorted((one for one in read if one is not None), key=lambda one: (one.name, one.namespace)))
