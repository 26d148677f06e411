"""All children of a pipeline: those that outlive its revisions, and the set of one revision, each with its builder.

The Deployment has a file of its own. A changed stage file is a new ConfigMap, so during a rollout the old pods keep
reading the file that they started with. gRPC keeps one connection for many calls, so a stage's upstream balances its
calls over the addresses of a headless Service. Of the two stable Services, the one with the pipeline's name has a
cluster IP, for clients that cannot balance their calls themselves. The other is headless.

The NetworkPolicy of a stage is derived from the graph:

in:   gRPC from clients (entry stage) or from the upstream stage of the same revision; health from anywhere (a policy
      cannot select kubelet, and the port shows only whether the stage is healthy); metrics from pods of the cluster
out:  gRPC to the downstream stages; DNS servers and the OpenTelemetry collector, in pods or at private addresses; the
      model hub, if the checkpoint is downloaded from it (also while the stage serves, because a policy applies to all
      containers of a pod)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from omni_kube.objects import Manifest, content_hash
from omni_operator import names
from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.deployment import TLS_MOUNT, build_deployment
from omni_operator.desired.metadata import build_child
from omni_operator.desired.model_files import locate_model
from omni_operator.desired.pod_settings import to_plain
from omni_operator.desired.revision import dump_spec, pin_images
from omni_operator.desired.route import build_route
from omni_operator.desired.stage_build import CONFIG_KEY, StageBuild
from omni_proto.pipeline import OmniPipeline, Stage, compile_stages, readers_of
from omni_proto.pipeline.types.entry import Entry, EntryService
from omni_proto.pipeline.types.pods import DisruptionBudget
from omni_proto.pipeline.types.scaling import STAGE_KIND
from omni_proto.pod_contract import (
    GRPC_PORT,
    GRPC_PORT_NAME,
    HEALTH_PORT,
    METRICS_PORT,
    METRICS_PORT_NAME,
    PIPELINE_LABEL,
    REVISION_LABEL,
    STAGE_LABEL,
)
from omni_proto.stage_config import Listen, ServerTls, StageConfig


def build_shared(
    owner: Owner,
    serving: str | None,
    *,
    tls: bool = False,
    entry: Entry | None = None,
    scaled: Sequence[str] = (),
) -> list[Manifest]:
    """Returns the children that revisions share: the ServiceAccount, the scale targets, the stable Services and
    the route to them from outside the cluster.

    The Services select the entry stage of the revision `serving`. If it is None, no revision serves yet, and they
    select nothing. tls: whether that stage uses TLS. entry: settings of the Service with the pipeline's name, and
    the route. scaled: the stages that have scaling.
    """
    targets = [build_scale_target(owner, stage) for stage in scaled]
    given = entry or Entry()
    services = build_entry_services(owner, serving, tls=tls, service=given.service)
    return [build_service_account(owner), *targets, *services, *build_route(owner, given.route)]


def build_scale_target(owner: Owner, stage: str) -> Manifest:
    """Returns a stage's OmniStage without its number of pods, which belongs to the client that scales it."""
    labels = names.child_labels(owner.name, stage=stage)
    return build_child(STAGE_KIND, names.scale_target_name(owner.name, stage), owner, labels, {})


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


def build_config_map(build: StageBuild) -> Manifest:
    """Returns the stage's ConfigMap."""
    content = {"immutable": True, "data": {CONFIG_KEY: build.config_text}}
    return build_child("ConfigMap", build.config_map, build.owner, build.labels, content)


def build_entry_services(owner: Owner, serving: str | None, *, tls: bool, service: EntryService) -> list[Manifest]:
    """Returns the stable Services of a pipeline. Without a serving revision they have no endpoints.

    tls: whether clients reach the serving revision over TLS. service: settings of the one with the pipeline's name.
    """
    selector = names.entry_selector(owner.name, serving)
    labels = names.child_labels(owner.name)
    entry: Manifest = {"selector": selector, "ports": _ports(tls)}
    if service.type != "ClusterIP":
        entry["type"] = service.type
    if service.load_balancer_class is not None:
        entry["loadBalancerClass"] = service.load_balancer_class
    return [
        build_child(
            "Service", names.headless_service_name(owner.name), owner, labels, {"spec": _headless_spec(selector, tls)}
        ),
        build_child(
            "Service", names.entry_service_name(owner.name), owner, labels, {"spec": entry}, service.annotations
        ),
    ]


def build_stage_service(build: StageBuild) -> Manifest:
    """Returns a stage's headless Service, by which its upstream stage of the same revision calls it.

    The entry stage has one too, although it has no upstream stage.
    """
    spec = _headless_spec(build.selector, tls=build.tls is not None)
    return build_child("Service", build.name, build.owner, build.labels, {"spec": spec})


def _headless_spec(selector: dict[str, str], tls: bool) -> Manifest:
    return {"clusterIP": "None", "selector": selector, "ports": _ports(tls)}


def _ports(tls: bool) -> list[Manifest]:
    return [
        {
            "name": GRPC_PORT_NAME,
            "port": GRPC_PORT,
            "targetPort": GRPC_PORT_NAME,
            "protocol": "TCP",
            # The protocol, for meshes and gateways: HTTP/2 without TLS, or TLS, which they must forward unchanged.
            "appProtocol": "https" if tls else "kubernetes.io/h2c",
        }
    ]


def build_disruption_budget(build: StageBuild) -> Manifest | None:
    """Returns the stage's PodDisruptionBudget; None below two replicas, where it would protect nothing, unless the
    resource sets one."""
    given: DisruptionBudget | None = build.setting("pod_disruption_budget")
    if given is None and build.replicas < 2:
        return None
    bounds = to_plain(given) if given is not None else {}
    spec = {
        **({} if "minAvailable" in bounds else {"maxUnavailable": 1}),
        **bounds,
        "selector": {"matchLabels": build.selector},
        # A pod that is not ready serves no requests, so by default it does not block the drain of its node.
        "unhealthyPodEvictionPolicy": bounds.get("unhealthyPodEvictionPolicy", "AlwaysAllow"),
    }
    return build_child("PodDisruptionBudget", build.name, build.owner, build.labels, {"spec": spec})


def build_service_account(owner: Owner) -> Manifest:
    """Returns the pipeline's ServiceAccount."""
    return build_child(
        "ServiceAccount",
        names.service_account_name(owner.name),
        owner,
        names.child_labels(owner.name),
        {"automountServiceAccountToken": False},
    )


def build_controller_revision(pipeline: OmniPipeline, revision: str, owner: Owner) -> Manifest:
    """Returns the snapshot of a pipeline whose images are set; its number is the pipeline's generation."""
    spec = dump_spec(pipeline)
    return build_child(
        "ControllerRevision",
        names.snapshot_name(owner.name, revision, content_hash(spec, names.CONTENT_HASH_LENGTH)),
        owner,
        names.child_labels(owner.name, revision=revision),
        {"revision": pipeline.metadata.generation, "data": {"spec": spec}},
    )


_LABELS = {"pipeline": PIPELINE_LABEL, "stage": STAGE_LABEL, "revision": REVISION_LABEL}
# podTargetLabels would name the label omnipipeline_io_pipeline instead of pipeline.
_RELABELINGS = [
    {
        "sourceLabels": [f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9]', '_', label)}"],
        "targetLabel": target,
        "action": "replace",
    }
    for target, label in _LABELS.items()
]


def build_pod_monitor(revision: str, owner: Owner, selected_by: Mapping[str, str]) -> Manifest:
    """Returns the revision's PodMonitor, with the labels by which a Prometheus selects it.

    Series carry the labels pipeline, stage and revision.
    """
    spec = {
        "selector": {"matchLabels": {PIPELINE_LABEL: owner.name, REVISION_LABEL: revision}},
        "podMetricsEndpoints": [{"port": METRICS_PORT_NAME, "relabelings": _RELABELINGS}],
    }
    labels = {**selected_by, **names.child_labels(owner.name, revision=revision)}
    return build_child("PodMonitor", names.revision_name(owner.name, revision), owner, labels, {"spec": spec})


_LINK_LOCAL: Final = "169.254.0.0/16"
_NO_HUBS: Final = {"0.0.0.0/0": [_LINK_LOCAL], "::/0": ["fe80::/10", "fd00:ec2::254/128"]}
"""IP blocks with all addresses, each with its exceptions: link-local addresses and AWS's IPv6 metadata address. No
model hub has such an address, but the metadata services of clouds do, and they hand out credentials."""
_INSIDE: Final = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    _LINK_LOCAL,
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
    "fe80::/10",
)
"""Private address blocks, for DNS servers and collectors outside of pods. Access to public blocks could leak data."""
_OPENSHIFT_DNS: Final = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}}
"""OpenShift's DNS servers. They listen on port 5353, which OpenShift's network plugin checks instead of their Service's
port 53."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def build_network_policy(build: StageBuild) -> Manifest:
    """Returns the stage's NetworkPolicy."""
    spec = {
        "podSelector": {"matchLabels": build.selector},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": _ingress(build),
        "egress": _egress(build),
    }
    return build_child("NetworkPolicy", build.name, build.owner, build.labels, {"spec": spec})


def _ingress(build: StageBuild) -> list[Manifest]:
    calls: Manifest = {"ports": _tcp(GRPC_PORT)}
    if build.stage.inputs:
        calls["from"] = [_stage_pods(build, build.stage.inputs[0].source)]
    return [
        calls,
        {"ports": _tcp(HEALTH_PORT)},
        {"ports": _tcp(METRICS_PORT), "from": [{"namespaceSelector": {}}]},
    ]


def _egress(build: StageBuild) -> list[Manifest]:
    inside: list[Manifest] = [{"namespaceSelector": {}}, *({"ipBlock": {"cidr": block}} for block in _INSIDE)]
    rules: list[Manifest] = [{"ports": _dns(53), "to": inside}, {"ports": _dns(5353), "to": [_OPENSHIFT_DNS]}]
    readers = sorted(reader.name for reader in readers_of(build.pipeline, build.stage.name))
    if readers:
        rules.append({"ports": _tcp(GRPC_PORT), "to": [_stage_pods(build, reader) for reader in readers]})
    if (collector := build.collector) is not None:
        rules.append({"ports": _tcp(collector_port(collector)), "to": inside})
    if build.model.fetch is not None:
        source = _named_source(build.model.fetch.uri, build.settings.hub_endpoint)
        hubs: list[Manifest] = [{"ipBlock": {"cidr": block, "except": not_in}} for block, not_in in _NO_HUBS.items()]
        if source is not None:
            # It may be a pod, and with some network plugins an ipBlock does not match pods.
            hubs.append({"namespaceSelector": {}})
        rules.append({"ports": _tcp(hub_port(source)), "to": hubs})
    return rules


def _named_source(uri: str, mirror: str | None) -> str | None:
    """Returns the endpoint of a download, if the resource or a setting names it: a registry's, or the hub's mirror."""
    scheme, _, rest = uri.partition("://")
    if scheme == "oci":
        return f"https://{rest.partition('/')[0]}"
    return mirror if scheme == "hf" else None


def collector_port(endpoint: str) -> int:
    """Returns the port of an OTLP collector; its URL always includes one."""
    return int(endpoint.rpartition(":")[2])


def hub_port(endpoint: str | None) -> int:
    """Returns the model hub's port: from the endpoint, else the default of its scheme, else 443."""
    if endpoint is None:
        return _DEFAULT_PORTS["https"]
    parts = urlsplit(endpoint)
    return parts.port or _DEFAULT_PORTS.get(parts.scheme, _DEFAULT_PORTS["https"])


def _stage_pods(build: StageBuild, stage: str) -> Manifest:
    return {"podSelector": {"matchLabels": names.stage_selector(build.owner.name, stage, build.revision)}}


def _dns(port: int) -> list[Manifest]:
    return [{"protocol": protocol, "port": port} for protocol in ("UDP", "TCP")]


def _tcp(port: int) -> list[Manifest]:
    return [{"protocol": "TCP", "port": port}]
