"""All children of a pipeline: those that outlive its revisions, and the set of one revision."""

from __future__ import annotations

from collections.abc import Mapping

from omni_kube.objects import Manifest
from omni_operator import names
from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.children import (
    build_config_map,
    build_controller_revision,
    build_disruption_budget,
    build_entry_services,
    build_pod_monitor,
    build_service_account,
    build_stage_service,
)
from omni_operator.desired.deployment import build_deployment
from omni_operator.desired.model_files import locate_model
from omni_operator.desired.network_policy import build_network_policy
from omni_operator.desired.revision import pin_images
from omni_operator.desired.stage_build import StageBuild
from omni_operator.desired.volumes import TLS_MOUNT
from omni_proto.pipeline import OmniPipeline, Stage, compile_stages
from omni_proto.stage_config import Listen, ServerTls, StageConfig


def build_shared(owner: Owner, serving: str | None, *, tls: bool = False) -> list[Manifest]:
    """Returns the children of the pipeline as a whole: its ServiceAccount and its stable Services.

    The Services select the entry stage of the revision `serving`. If it is None, no revision serves yet, and they
    select nothing. tls: whether that stage uses TLS.
    """
    return [build_service_account(owner), *build_entry_services(owner, serving, tls=tls)]


def build_revision_set(
    pipeline: OmniPipeline,
    revision: str,
    replicas: Mapping[str, int],
    owner: Owner,
    settings: BuildSettings,
) -> list[Manifest]:
    """Returns every child of one revision. pipeline is the resource, or the snapshot of an older revision.

    replicas: number of pods for each stage (decided in rollout/replicas.py).
    """
    pinned = pin_images(pipeline, settings.default_image)
    children = [build_controller_revision(pinned, revision, owner)]
    if settings.pod_monitors:
        children.append(build_pod_monitor(revision, owner, dict(settings.pod_monitor_labels)))
    for config in compile_configs(pinned, revision, owner, settings):
        stage = pinned.stage(config.stage)
        build = StageBuild(
            pipeline=pinned,
            stage=stage,
            config=config,
            revision=revision,
            owner=owner,
            settings=settings,
            model=locate_model(pinned, stage),
            replicas=replicas[stage.name],
        )
        children += _build_stage(build)
    return children


def compile_configs(pipeline: OmniPipeline, revision: str, owner: Owner, settings: BuildSettings) -> list[StageConfig]:
    """Returns the stage files of a revision in the order of the graph.

    They contain the addresses of this revision's Services and the paths inside its pods. The files do not depend on the
    order of stages in the resource, so a new order restarts no pod. Server-side apply by two managers may change that
    order.
    """

    def target_for(stage: Stage) -> str:
        return names.stage_target(owner.name, stage.name, revision, owner.namespace, settings.cluster_domain)

    stages = sorted(pipeline.spec.stages, key=lambda stage: stage.name)
    in_order = pipeline.model_copy(update={"spec": pipeline.spec.model_copy(update={"stages": stages})})
    return compile_stages(
        in_order,
        target_for=target_for,
        model_path_for=lambda stage: locate_model(pipeline, stage).path,
        listen_for=lambda stage: _listen(pipeline, stage),
    )


def _listen(pipeline: OmniPipeline, stage: Stage) -> Listen:
    tls = pipeline.spec.entry.tls
    if tls is None or stage.inputs:
        return Listen()
    return Listen(
        tls=ServerTls(
            directory=TLS_MOUNT, client_certificates=tls.client_certificates, source=f"Secret {tls.secret_name}"
        )
    )


def _build_stage(build: StageBuild) -> list[Manifest]:
    children: list[Manifest | None] = [
        build_config_map(build),
        build_stage_service(build),
        build_network_policy(build),
        build_deployment(build),
        build_disruption_budget(build),
    ]
    return [child for child in children if child is not None]
