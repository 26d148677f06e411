"""What the builders need beside the pipeline: whom children belong to, and what the operator's administrator set.

Nothing here may change by an upgrade of the operator alone: pods restart when their template changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

DEFAULT_IMAGE: Final = "omnipipeline-stage:0.1.0"
"""Image of stage servers where nobody names one."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The OmniPipeline that children belong to."""

    name: str
    namespace: str
    uid: str = ""
    """Empty where no live object exists (`omnipipe render`): then children carry no ownerReference."""


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """Settings of the administrator that show in children."""

    default_image: str = DEFAULT_IMAGE
    """Image of stages that name none. Part of the revision."""
    cluster_domain: str = "cluster.local"
    """DNS domain of the cluster, in the addresses of downstream stages."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """Of every container. None leaves it to Kubernetes: Always for :latest, else IfNotPresent."""
    pod_monitors: bool = False
    """Whether the cluster has the PodMonitor API."""
    pod_monitor_labels: tuple[tuple[str, str], ...] = ()
    """Labels by which the administrator's Prometheus selects PodMonitors."""
    hub_endpoint: str | None = None
    """URL of a mirror of the model hub, e.g. https://hub.example:8443. None is the public hub."""
