"""The parts of a stage's pod that the resource sets: variables, volumes, user and groups, placement.

They are copied as they are written, without values that the API server would drop. The names that the pod
itself relies on are refused by the rules of the resource (omni_proto/pipeline/rules/pods.py).
"""

from __future__ import annotations

from typing import Any, Final

from omni_kube.objects import Manifest
from omni_operator.desired.stage_build import StageBuild
from omni_proto.pipeline.types.kubernetes import TopologySpread
from omni_proto.stage_config import ConfigModel

USER_ID: Final = 10001
"""User and group of the image."""


def build_env(build: StageBuild, own: list[Manifest]) -> Manifest:
    """Returns env and envFrom of a container: the resource's variables, after the operator's own.

    A variable of the resource replaces an own one of that name; the rules allow it only for OMP_NUM_THREADS.
    """
    # The API server drops empty values, so a variable that keeps one would always differ from the live object.
    given = [
        {key: value for key, value in drop_empty(to_plain(variable)).items() if value != ""}
        for variable in build.setting("env") or ()
    ]
    names = {variable["name"] for variable in given}
    env: Manifest = {"env": [*(variable for variable in own if variable["name"] not in names), *given]}
    if sources := build.setting("env_from"):
        env["envFrom"] = [drop_empty(to_plain(source)) for source in sources]
    return env


def build_user_mounts(build: StageBuild) -> list[Manifest]:
    """Returns the mounts of the resource's volumes. They are read-only."""
    return [{**to_plain(mount), "readOnly": True} for mount in build.setting("volume_mounts") or ()]


def build_user_volumes(build: StageBuild) -> list[Manifest]:
    """Returns the resource's volumes. Claims and volumes of CSI drivers are attached read-only."""
    return [drop_empty(to_plain(volume)) for volume in build.setting("volumes") or ()]


def build_pod_security(build: StageBuild) -> Manifest:
    """Returns the pod's securityContext. Whatever the resource sets, it conforms to Pod Security `restricted`."""
    given = build.setting("pod_security_context")
    users: Manifest
    if given is None:
        users = {"runAsUser": USER_ID, "runAsGroup": USER_ID, "fsGroup": USER_ID}
    else:
        users = drop_empty(to_plain(given))
    if "fsGroup" in users:
        # Makes volumes writable for the user. OnRootMismatch skips large volumes that already have this group.
        users = {**users, "fsGroupChangePolicy": users.get("fsGroupChangePolicy", "OnRootMismatch")}
    return {"runAsNonRoot": True, **users, "seccompProfile": {"type": "RuntimeDefault"}}


_FIELDS: Final = (
    "image_pull_secrets",
    "scheduler_name",
    "runtime_class_name",
    "resource_claims",
    "node_selector",
    "tolerations",
    "affinity",
    "priority_class_name",
)
_DEFAULT_SPREAD: Final = (TopologySpread(),)
_EMPTY_MEANS_ALL: Final = frozenset({"labelSelector", "preference"})


def build_placement(build: StageBuild) -> Manifest:
    """Returns the fields of the pod spec that place the pod and pull its image."""
    placement = {_camel(field): to_plain(build.setting(field)) for field in _FIELDS}
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
    configured = build.setting("topology")
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


def to_plain(value: Any) -> Any:
    """Returns a value of the resource as JSON, with the fields that are set."""
    if isinstance(value, ConfigModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    return value


def _camel(field: str) -> str:
    head, *tail = field.split("_")
    return head + "".join(part.capitalize() for part in tail)
