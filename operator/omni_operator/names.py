"""Names and labels of everything that belongs to a pipeline. No other module composes them.

The names of a revision's objects contain the revision's hash. So two revisions can exist side by side, and each stage
is configured with the addresses of downstream stages of its own revision.
"""

from __future__ import annotations

import re
from typing import Final

from omni_kube.objects import Manifest
from omni_operator.kinds import FIELD_MANAGER
from omni_proto.pod_contract import DOMAIN, GRPC_PORT, PIPELINE_LABEL, REVISION_LABEL, ROLE_LABEL, STAGE_LABEL

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"

DESIRED_HASH_ANNOTATION: Final = f"{DOMAIN}/desired-hash"
"""On every child: hash of the manifest that the operator last applied, computed without this annotation."""
CONFIG_HASH_ANNOTATION: Final = f"{DOMAIN}/config-hash"
"""On pods: hash of the stage file. A changed hash replaces the pods in a rolling update."""

NO_REVISION: Final = "none"
"""Revision that the stable Services select while nothing serves: no pod has this label value."""

REVISION_LENGTH: Final = 7
CONTENT_HASH_LENGTH: Final = 10
"""Length of the hash in the names of immutable objects (ConfigMaps and ControllerRevisions)."""

STAGE_CONTAINER: Final = "stage"
"""Container that runs the stage server."""
FETCH_CONTAINER: Final = "fetch-model"
TOKEN_VOLUME: Final = "hub-token"  # noqa: S105 - the name of a volume
"""Volume with the key of the Secret that tokenSecretRef names."""
"""Init container that downloads a checkpoint."""


def entry_service_name(pipeline: str) -> str:
    """Returns the name of the pipeline's stable Service, which clients call."""
    return pipeline


def headless_service_name(pipeline: str) -> str:
    """Returns the name of the stable Service without a cluster IP, for clients that balance load themselves."""
    return f"{pipeline}-headless"


def service_account_name(pipeline: str) -> str:
    """Returns the name of the ServiceAccount of a pipeline's pods.

    The suffix keeps a pipeline named `default` from using the namespace's default ServiceAccount.
    """
    return f"{pipeline}-stages"


def revision_name(pipeline: str, revision: str) -> str:
    """Returns the name of an object that belongs to one revision as a whole: its PodMonitor."""
    return f"{pipeline}-{revision}"


def snapshot_name(pipeline: str, revision: str, spec_hash: str) -> str:
    """Returns the name of the ControllerRevision that keeps a revision's spec.

    The data of a ControllerRevision is immutable, so the name contains the hash of the spec.
    """
    return f"{revision_name(pipeline, revision)}-{spec_hash}"


def stage_name(pipeline: str, stage: str, revision: str) -> str:
    """Returns the name of the objects of one stage of one revision.

    These are its Deployment, headless Service, PodDisruptionBudget and NetworkPolicy. The name has at most 62
    characters (MAX_JOINED_NAME of pipeline/rules/graph.py), so that it is valid for a Service.
    """
    return f"{pipeline}-{stage}-{revision}"


def config_map_name(pipeline: str, stage: str, revision: str, config_hash: str) -> str:
    """Returns the name of the immutable ConfigMap of one stage file."""
    return f"{stage_name(pipeline, stage, revision)}-{config_hash}"


def scale_target_name(pipeline: str, stage: str) -> str:
    """Returns the name of a stage's OmniStage, which every revision of the stage shares."""
    return f"{pipeline}-{stage}"


def is_child_name(child: Manifest, pipeline: str) -> bool:
    """Returns whether an object with a child's labels has the name that the operator gives to a child with these."""
    name, labels = str(child["metadata"]["name"]), child["metadata"].get("labels") or {}
    revision, stage = labels.get(REVISION_LABEL), labels.get(STAGE_LABEL)
    if revision is None and stage is not None:
        return name == scale_target_name(pipeline, stage)
    if revision is None:
        return name in (entry_service_name(pipeline), headless_service_name(pipeline), service_account_name(pipeline))
    base = revision_name(pipeline, revision) if stage is None else stage_name(pipeline, stage, revision)
    return name == base or re.fullmatch(rf"{re.escape(base)}-[0-9a-f]{{{CONTENT_HASH_LENGTH}}}", name) is not None


def stage_target(pipeline: str, stage: str, revision: str, namespace: str, cluster_domain: str) -> str:
    """Returns the gRPC target at which a stage's upstream calls it.

    The final dot makes the name absolute, so that the resolver skips its search list.
    """
    return f"dns:///{stage_name(pipeline, stage, revision)}.{namespace}.svc.{cluster_domain}.:{GRPC_PORT}"


def pipeline_url(pipeline: str, namespace: str, *, tls: bool = False) -> str:
    """Returns status.url: the address for clients in the cluster. The scheme shows whether the pipeline uses TLS."""
    return f"{'grpcs' if tls else 'grpc'}://{entry_service_name(pipeline)}.{namespace}.svc:{GRPC_PORT}"


def stage_selector(pipeline: str, stage: str, revision: str) -> dict[str, str]:
    """Returns the labels that select the pods of one stage of one revision: its Deployment's immutable selector."""
    return {PIPELINE_LABEL: pipeline, STAGE_LABEL: stage, REVISION_LABEL: revision}


def entry_selector(pipeline: str, serving: str | None) -> dict[str, str]:
    """Returns the selector of the stable Services: pods of the serving revision's entry stage; None selects no pod.

    It selects by role, not by the stage's name, because another revision may have another name for its entry stage.
    """
    return {PIPELINE_LABEL: pipeline, ROLE_LABEL: "entry", REVISION_LABEL: serving or NO_REVISION}


def serving_revision(selector: dict[str, str]) -> str | None:
    """Returns the revision in the selector of a live stable Service; None if it selects no revision."""
    revision = selector.get(REVISION_LABEL, NO_REVISION)
    return None if revision == NO_REVISION else revision


def child_labels(
    pipeline: str, *, stage: str | None = None, revision: str | None = None, role: str | None = None
) -> dict[str, str]:
    """Returns the labels of a child of the whole pipeline, of one revision, or of one stage of a revision."""
    labels = {
        "app.kubernetes.io/name": "omnipipeline",
        "app.kubernetes.io/instance": pipeline,
        "app.kubernetes.io/part-of": "omnipipeline",
        MANAGED_BY_LABEL: FIELD_MANAGER,
        PIPELINE_LABEL: pipeline,
    }
    if revision is not None:
        labels[REVISION_LABEL] = revision
    if stage is not None:
        labels |= {"app.kubernetes.io/component": stage, STAGE_LABEL: stage}
    if role is not None:
        labels[ROLE_LABEL] = role
    return labels
