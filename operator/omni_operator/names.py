"""Names and labels of everything that belongs to a pipeline: the one place that puts them together.

A revision's objects carry its hash in their names, so that two revisions stand side by side and an upstream is
configured with the address of a downstream of its own revision.
"""

from __future__ import annotations

from typing import Final

from omni_operator.kinds import FIELD_MANAGER
from omni_proto.pod_contract import DOMAIN, GRPC_PORT, PIPELINE_LABEL, REVISION_LABEL, ROLE_LABEL, STAGE_LABEL

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"

DESIRED_HASH_ANNOTATION: Final = f"{DOMAIN}/desired-hash"
"""On every child: hash of the manifest that the operator last applied, without this annotation."""
CONFIG_HASH_ANNOTATION: Final = f"{DOMAIN}/config-hash"
"""On pods: hash of the stage file; a new one rolls the pods."""

NO_REVISION: Final = "none"
"""Revision that the stable Services select while nothing serves: no pod carries it."""

REVISION_LENGTH: Final = 7
CONTENT_HASH_LENGTH: Final = 10
"""Of the names of immutable objects: ConfigMaps and ControllerRevisions."""

STAGE_CONTAINER: Final = "stage"
"""Container that runs the stage server."""
FETCH_CONTAINER: Final = "fetch-model"
"""Init container that downloads an hf:// checkpoint."""


def entry_service_name(pipeline: str) -> str:
    """The stable Service of a pipeline: what clients call."""
    return pipeline


def headless_service_name(pipeline: str) -> str:
    """The stable Service without a cluster IP: for clients that balance by themselves."""
    return f"{pipeline}-headless"


def service_account_name(pipeline: str) -> str:
    """The ServiceAccount of a pipeline's pods. The suffix keeps a pipeline named `default` off a namespace's own."""
    return f"{pipeline}-stages"


def revision_name(pipeline: str, revision: str) -> str:
    """What belongs to one revision as a whole: its PodMonitor."""
    return f"{pipeline}-{revision}"


def snapshot_name(pipeline: str, revision: str, spec_hash: str) -> str:
    """The ControllerRevision that keeps a revision's spec. Its data cannot be changed, so its hash is in the name."""
    return f"{revision_name(pipeline, revision)}-{spec_hash}"


def stage_name(pipeline: str, stage: str, revision: str) -> str:
    """What belongs to one stage of one revision: Deployment, headless Service, PodDisruptionBudget, NetworkPolicy.

    At most 62 characters (MAX_JOINED_NAME of pipeline/rules/graph.py), so that it fits a Service's name.
    """
    return f"{pipeline}-{stage}-{revision}"


def config_map_name(pipeline: str, stage: str, revision: str, config_hash: str) -> str:
    """The immutable ConfigMap of one stage file."""
    return f"{stage_name(pipeline, stage, revision)}-{config_hash}"


def stage_target(pipeline: str, stage: str, revision: str, namespace: str, cluster_domain: str) -> str:
    """gRPC target by which the upstream of a stage calls it; the final dot spares the resolver its search list."""
    return f"dns:///{stage_name(pipeline, stage, revision)}.{namespace}.svc.{cluster_domain}.:{GRPC_PORT}"


def pipeline_url(pipeline: str, namespace: str, *, tls: bool = False) -> str:
    """status.url: where clients in the cluster reach the pipeline, and whether over TLS."""
    return f"{'grpcs' if tls else 'grpc'}://{entry_service_name(pipeline)}.{namespace}.svc:{GRPC_PORT}"


def stage_selector(pipeline: str, stage: str, revision: str) -> dict[str, str]:
    """Labels of the pods of one stage of one revision: the selector of its Deployment, which cannot be changed."""
    return {PIPELINE_LABEL: pipeline, STAGE_LABEL: stage, REVISION_LABEL: revision}


def entry_selector(pipeline: str, serving: str | None) -> dict[str, str]:
    """Selector of the stable Services: pods of the serving revision's entry stage; None selects no pod.

    By role, not by the stage's name, which another revision may have changed.
    """
    return {PIPELINE_LABEL: pipeline, ROLE_LABEL: "entry", REVISION_LABEL: serving or NO_REVISION}


def serving_revision(selector: dict[str, str]) -> str | None:
    """The revision in the selector of a live stable Service; None if it selects none."""
    revision = selector.get(REVISION_LABEL, NO_REVISION)
    return None if revision == NO_REVISION else revision


def child_labels(
    pipeline: str, *, stage: str | None = None, revision: str | None = None, role: str | None = None
) -> dict[str, str]:
    """Labels of a child: of the whole pipeline, of one revision, or of one stage of it."""
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
