"""Inputs of the builders in addition to the pipeline: the owner of the children, and the administrator's settings.

Pods are replaced when their template changes. Of the values below that appear in the template, an upgrade of the
operator may change only the default image (docs/upgrade.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

DEFAULT_IMAGE: Final = "omnipipeline-stage:0.1.0"
"""Image of stage servers if neither the pipeline nor the administrator sets one."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The OmniPipeline that children belong to."""

    name: str
    namespace: str
    uid: str = ""
    """Empty if there is no live object (`omnipipe render`): then children have no ownerReference."""


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """The administrator's settings that affect children."""

    default_image: str = DEFAULT_IMAGE
    """Image of stages that set none. Part of the revision."""
    cluster_domain: str = "cluster.local"
    """DNS domain of the cluster, in the addresses of downstream stages."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """For every container. None uses Kubernetes' default: Always for :latest, else IfNotPresent."""
    pod_monitors: bool = False
    """Whether to write PodMonitors: the cluster has their API, and the administrator wants them."""
    pod_monitor_labels: tuple[tuple[str, str], ...] = ()
    """Labels by which the administrator's Prometheus selects PodMonitors."""
    hub_endpoint: str | None = None
    """URL of a mirror of the model hub, e.g. https://hub.example:8443. None is the public hub."""
    otlp_endpoint: str | None = None
    """OpenTelemetry collector for pipelines that set none, e.g. http://collector:4317. None: no traces."""
