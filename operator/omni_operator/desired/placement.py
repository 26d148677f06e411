"""Placement of a stage's pods. A stage's setting replaces the pipeline's setting completely; they are not merged."""

from __future__ import annotations

from typing import Any, Final

from omni_kube.objects import Manifest
from omni_operator.desired.stage_build import StageBuild
from omni_proto.pipeline.types.kubernetes import TopologySpread
from omni_proto.stage_config import ConfigModel

_FIELDS: Final = (
    "image_pull_secrets",
    "runtime_class_name",
    "node_selector",
    "tolerations",
    "affinity",
    "priority_class_name",
)
_DEFAULT_SPREAD: Final = (TopologySpread(),)
_EMPTY_MEANS_ALL: Final = frozenset({"labelSelector", "preference"})


def pod_setting(build: StageBuild, field: str) -> Any:
    """Returns a pod setting of the stage, else of the pipeline's defaults; None if neither sets it."""
    own = getattr(build.stage, field)
    return own if own is not None else getattr(build.pipeline.spec.defaults, field)


def build_placement(build: StageBuild) -> Manifest:
    """Returns the fields of the pod spec that place the pod and pull its image."""
    placement = {_camel(field): _plain(pod_setting(build, field)) for field in _FIELDS}
    # The API server drops empty values, so a toleration that keeps one would always differ from the live object.
    placement["tolerations"] = [
        {key: value for key, value in toleration.items() if value != ""}
        for toleration in placement["tolerations"] or ()
    ]
    placement["topologySpreadConstraints"] = _spread(build)
    kept: Manifest = drop_empty(placement)
    return kept


def drop_empty(value: Any) -> Any:
    """Returns JSON without the fields that the API server drops: null, empty lists and empty maps.

    Items of lists are kept. An empty label selector or node preference is kept too, because it matches everything. (An
    absent label selector matches nothing.)
    """
    if isinstance(value, list):
        return [drop_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    cleaned = {key: drop_empty(item) for key, item in value.items()}
    return {
        key: item
        for key, item in cleaned.items()
        if item is not None and (item not in ([], {}) or key in _EMPTY_MEANS_ALL)
    }


def _spread(build: StageBuild) -> list[Manifest]:
    configured = pod_setting(build, "topology")
    return [
        {
            "topologyKey": spread.topology_key,
            "maxSkew": spread.max_skew,
            "whenUnsatisfiable": spread.when_unsatisfiable,
            "labelSelector": {"matchLabels": build.selector},
            # Spread only pods of the same template: during a rollout, old pods do not count.
            "matchLabelKeys": ["pod-template-hash"],
        }
        for spread in (_DEFAULT_SPREAD if configured is None else configured)
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, ConfigModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _camel(field: str) -> str:
    head, *tail = field.split("_")
    return head + "".join(part.capitalize() for part in tail)
