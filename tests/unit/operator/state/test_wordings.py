"""What the status says about messages of the scheduler, kubelet, container runtimes and the API server.

The messages have the form that these programs write; `tests/controlplane/operator/test_scheduler_messages.py` compares
those of the scheduler with a real one.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from omni_operator.reasons import Reason
from omni_operator.state.container_wordings import ENDS, PULLS, STARTS
from omni_operator.state.pod_causes import find_cause, lacks_capacity, next_check
from omni_operator.state.wordings import REFUSALS, SCHEDULER
from support.operator.pod_statuses import (
    IMAGE,
    NOW,
    Json,
    ago,
    backed_off,
    condition,
    container,
    ended,
    pod,
    stage_of,
    unscheduled,
    waiting,
)
from support.tables import each_row

NODES = "0/4 nodes are available: "
PREEMPTION = " preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
U, V = Reason.UNSCHEDULABLE, Reason.VOLUME_NOT_BOUND

PLACEMENTS: dict[str, tuple[str, Reason, str, bool]] = {
    "gpu": (
        "4 Insufficient nvidia.com/gpu.",
        U,
        "with 1 free GPU for a pod: Insufficient nvidia.com/gpu; add nodes",
        True,
    ),
    "pods": ("4 Too many pods.", U, "add nodes", True),
    "taint": ("4 node(s) had untolerated taint(s).", U, "add tolerations", False),
    "named taint": ("4 node(s) had untolerated taint {nvidia.com/gpu: present}.", U, "add tolerations", False),
    "lost node": (
        "1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }.",
        U,
        "repair the nodes that are not ready",
        False,
    ),
    "pressure": ("4 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: }.", U, "free disk", True),
    "new node": (
        "4 node(s) had untolerated taint {node.cloudprovider.kubernetes.io/uninitialized: true}.",
        U,
        "wait until the nodes are set up",
        False,
    ),
    "removed node": (
        "4 node(s) had untolerated taint {ToBeDeletedByClusterAutoscaler: 1732701397}.",
        U,
        "{ToBeDeletedByClusterAutoscaler: TIME}; an autoscaler removes",
        True,
    ),
    "selector": ("4 node(s) didn't match Pod's node affinity/selector.", U, "correct nodeSelector or affinity", False),
    "affinity": ("4 node(s) didn't match pod affinity rules.", U, "podAffinity", False),
    "anti-affinity": ("4 node(s) didn't match pod anti-affinity rules.", U, "podAntiAffinity", False),
    "spread": ("4 node(s) didn't match pod topology spread constraints.", U, "relax topology", False),
    "cordon": ("4 node(s) were unschedulable.", U, "kubectl uncordon", False),
    "ports": ("4 node(s) didn't have free ports for the requested pod ports.", U, "host ports", True),
    "read-write-once-pod": (
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another "
        "pod.",
        U,
        "spec.rollout.strategy: Recreate",
        True,
    ),
    "other zone": ("4 node(s) had volume node affinity conflict.", V, "only on other nodes", False),
    "other zone, 1.34": ("4 node(s) didn't match PersistentVolume's node affinity.", V, "only on other nodes", False),
    "no volume": ("4 node(s) didn't find available persistent volumes to bind.", V, "PersistentVolume or Stor", False),
    "full storage": ("4 node(s) did not have enough free storage.", V, "add storage", False),
    "deleted claim": ('persistentvolumeclaim "models" is being deleted.', V, "delete the claim", False),
    "lost volume": (
        "4 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s).",
        V,
        "delete the claim",
        False,
    ),
    "class of volumes": ('storageclass.storage.k8s.io "fast" not found.', V, "kubectl describe pvc", False),
    "attached volumes": ("4 node(s) exceed max volume count.", U, "attach fewer", True),
    "device claim": ('resourceclaim "gpu-x" not found.', U, "resourceclaim", False),
    "devices": ("4 cannot allocate all claims.", U, "free devices", True),
    "device class": ("request gpu: device class h100 does not exist.", U, "deviceclasses", False),
}


@each_row("name", PLACEMENTS)
def test_why_no_node_runs_a_pod(name: str) -> None:
    why, reason, words, capacity = PLACEMENTS[name]
    stage = stage_of(pod(conditions=unscheduled(NODES + why + PREEMPTION)))
    cause = find_cause(stage, NOW)
    assert cause is not None
    assert cause.reason == reason
    assert words in cause.message
    assert "Preemption" not in cause.message
    assert lacks_capacity(stage) == capacity
    if name not in ("gpu", "pods"):
        assert "lower resources or replicas" not in cause.message
        assert "free GPU" not in cause.message


@pytest.mark.parametrize(
    "after",
    [
        "still not schedulable, preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling.",
        "deallocation of ResourceClaim completed, preemption: not eligible due to a terminating pod on the node.",
        "no new claims to deallocate, preemption: 0/4 nodes are available: 4 No preemption victims found.",
        "not found",
    ],
)
def test_what_plugins_tried_is_no_reason(after: str) -> None:
    """It has numbers of nodes, which change."""
    for verb in ("are available", "are unavailable"):
        message = f"0/4 nodes {verb}: 4 cannot allocate all claims. {after}"
        cause = find_cause(stage_of(pod(conditions=unscheduled(message))), NOW)
        assert cause is not None
        assert cause.message.startswith("no node for a pod: cannot allocate all claims; add nodes")


def test_the_message_of_another_scheduler_is_not_taken_apart() -> None:
    message = "pod group is not ready, 3 Pending, 3 minAvailable; Pending: 1 Unschedulable"
    cause = find_cause(stage_of(pod(conditions=unscheduled(message))), NOW)
    assert cause is not None
    assert cause.message == f"no node for a pod: {message}"


def test_several_reasons_have_their_remedies() -> None:
    """Nodes without GPUs, and nodes with a taint, which may have GPUs: the message says what to do about each."""
    both = "1 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint(s)."
    cause = find_cause(stage_of(pod(conditions=unscheduled(NODES + both))), NOW)
    assert cause is not None
    assert cause.message == (
        "no node with 1 free GPU for a pod: Insufficient nvidia.com/gpu, node(s) had untolerated taint(s); add nodes, "
        "or lower resources or replicas; add tolerations for the taints of the nodes that may run the pod, or repair "
        "the nodes if Kubernetes tainted them: kubectl describe nodes"
    )


def test_a_message_of_an_unknown_plugin_is_shown_as_it_is() -> None:
    cause = find_cause(stage_of(pod(conditions=unscheduled(NODES + "4 node(s) are painted blue, and round."))), NOW)
    assert cause is not None
    assert cause.message == "no node for a pod: node(s) are painted blue, and round"


def placed_wrongly(why: str, minutes: int) -> Json:
    return pod(
        conditions=[
            condition(
                "PodScheduled",
                "False",
                reason="Unschedulable",
                message=NODES + why,
                lastTransitionTime=ago(minutes=minutes),
            )
        ]
    )


def test_what_no_capacity_solves_is_a_failure_after_a_while() -> None:
    """An autoscaler may add a node with another label; a missing GPU, or a gate, may take hours."""
    selector = PLACEMENTS["selector"][0]
    for minutes, hard in ((14, False), (15, True)):
        stage = stage_of(placed_wrongly(selector, minutes))
        cause = find_cause(stage, NOW)
        assert cause is not None
        assert cause.hard == hard
        assert next_check(stage, NOW) == (None if hard else NOW + timedelta(minutes=1))
    for patient in (PLACEMENTS["gpu"][0], "Scheduling is blocked due to non-empty scheduling gates"):
        cause = find_cause(stage_of(placed_wrongly(patient, 60)), NOW)
        assert cause is not None
        assert not cause.hard


PULL_MESSAGES: dict[str, tuple[str, str, str]] = {
    "platform, CRI-O": (
        'choosing image instance: no image found in image index for architecture "arm64", OS "linux"',
        "no variant for the node's platform",
        "select nodes",
    ),
    "policy of the registry": (
        "error parsing HTTP 412 response body: projectPolicyViolation: current image with 12 vulnerabilities",
        "a policy of the registry",
        "policy for images",
    ),
    "no registry": ('short-name "stage" did not resolve to an alias', "no registry", "with its registry"),
    "page instead of layer": (
        "failed to unpack image on snapshotter overlayfs: unexpected media type text/html for sha256:a: not found",
        "cannot be unpacked",
        "push the image again",
    ),
    "expired": ("authorization token has expired. Reauthenticate", "access refused", "imagePullSecrets"),
    "no image": (f'failed to resolve reference "{IMAGE}": {IMAGE}: not found', "no such image", "name and tag"),
    "platform": (
        f'failed to pull and unpack image "{IMAGE}": no match for platform in manifest: not found',
        "no variant for the node's platform",
        "architecture",
    ),
    "docker's platform": ("no matching manifest for linux/arm64/v8 in the manifest list entries", "platform", "arch"),
    "rate": (
        "httpReadSeeker: failed open: unexpected status code 429 Too Many Requests - Server message: toomanyrequests",
        "limits the rate",
        "wait",
    ),
    "certificate": (
        "tls: failed to verify certificate: x509: certificate signed by unknown authority",
        "certif",
        "trust",
    ),
    "plain http": ("http: server gave HTTP response to HTTPS client", "certificate", "insecure"),
    "disk": (
        "failed to extract layer: write /var/lib/x: no space left on device: unknown",
        "disk is full",
        "free space",
    ),
    "private": ("failed to authorize: failed to fetch anonymous token: 401 Unauthorized", "access refused", "account"),
    "hidden": (
        "pull access denied, repository does not exist or may require authorization: insufficient_scope",
        "no such image, or access refused",
        "imagePullSecrets",
    ),
    "dns": ("dial tcp: lookup registry.example on 10.96.0.10:53: no such host", "name is unknown", "DNS"),
    "network": ("dial tcp 10.0.0.1:443: i/o timeout", "does not answer", "reach"),
    "layers": ("failed to extract layer sha256:ab: failed to get stream processor", "unpacked", "build and push"),
    "snapshots": (
        'failed to prepare extraction snapshot "extract-795119289-7389 sha256:92": parent snapshot sha256:0b does not '
        "exist: not found",
        "the node cannot store it",
        "repair or replace the node",
    ),
    "sizes": (
        'failed commit on ref "layer-sha256:53": "layer-sha256:53" failed size validation: 107840750 != 182249667: '
        "failed precondition",
        "unpacked",
        "build and push",
    ),
    "credential plugin": (
        "failed to fetch oauth token: unexpected status: 400 Bad Request: invalid_grant",
        "access refused",
        "imagePullSecrets",
    ),
    "signature": (
        "SignatureValidationFailed: image pull failed because the signature validation failed",
        "sign",
        "sign",
    ),
}


@each_row("name", PULL_MESSAGES)
def test_why_an_image_cannot_be_pulled(name: str) -> None:
    message, detail, remedy = PULL_MESSAGES[name]
    cause = find_cause(stage_of(pod([container(waiting=waiting("ErrImagePull", message))])), NOW)
    assert cause is not None
    assert cause.reason is Reason.IMAGE_PULL_BACK_OFF
    assert f"({detail}" in cause.message or detail in cause.message
    assert remedy in cause.message


def pull_cause(message: str) -> str:
    cause = find_cause(stage_of(pod([container(waiting=waiting("ErrImagePull", message))])), NOW)
    assert cause is not None
    return cause.message


def test_the_query_of_a_signed_url_is_no_complaint() -> None:
    """Registries redirect to storage with such URLs."""
    url = "https://s3.example/blob?X-Amz-Credential=a/b&X-Amz-Signature=abc403"
    assert "does not answer" in pull_cause(f'failed open: failed to do request: Get "{url}": dial tcp: i/o timeout')


def test_the_cause_of_a_pull_stays_the_same_at_each_attempt() -> None:
    """Kubelet puts the error after a text of its own while it waits, and some errors have ids of the attempt."""
    seen = {
        pull_cause(f"{start}odd thing: request {one}-aaaa-4bbb-8ccc-ddddeeeeffff from 10.0.0.9:{port}->1.2.3.4:443")
        for start in ("", f'Back-off pulling image "{IMAGE}": ErrImagePull: ')
        for one, port in (("01234567", 38822), ("89abcdef", 40001))
    }
    assert len(seen) == 1
    assert "odd thing" in seen.pop()


def test_the_image_s_own_name_says_nothing_about_the_cause() -> None:
    given = pod([container(waiting=waiting("ErrImagePull", 'failed to pull "denied.example/x509/timeout:429": odd'))])
    given["spec"]["containers"][0]["image"] = "denied.example/x509/timeout:429"
    cause = find_cause(stage_of(given), NOW)
    assert cause is not None
    assert cause.message.endswith(': failed to pull "denied.example/x509/timeout:429": odd')


STARTS_SEEN: dict[str, tuple[str, str, Reason, str]] = {
    "key": ("CreateContainerConfigError", "couldn't find key token in Secret a/b", Reason.MISSING_REFERENCE, "create"),
    "root": (
        "CreateContainerConfigError",
        "container has runAsNonRoot and image will run as root",
        Reason.CONTAINER_NOT_STARTED,
        "numeric USER",
    ),
    "architecture": (
        "RunContainerError",
        "exec /usr/bin/python: exec format error",
        Reason.CONTAINER_NOT_STARTED,
        "arch",
    ),
    "foreign image": (
        "StartError",
        'exec: "python": executable file not found in $PATH: unknown',
        Reason.CONTAINER_NOT_STARTED,
        "stage server",
    ),
    "driver": (
        "RunContainerError",
        "nvidia-container-cli: initialization error: driver not loaded",
        Reason.CONTAINER_NOT_STARTED,
        "GPU driver",
    ),
    "mount": (
        "RunContainerError",
        'error mounting "/data" to rootfs: no such file or directory: unknown',
        Reason.CONTAINER_NOT_STARTED,
        "cannot be started (RunContainerError); see kubectl describe pod",
    ),
    "unknown reason": ("PreStartHookError", "odd", Reason.CONTAINER_NOT_STARTED, "(PreStartHookError); see kubectl"),
}


@pytest.mark.parametrize("name", STARTS_SEEN)
def test_why_a_container_cannot_be_started(name: str) -> None:
    kind, message, reason, words = STARTS_SEEN[name]
    cause = find_cause(stage_of(pod([container(waiting=waiting(kind, message))])), NOW)
    assert cause is not None
    assert cause.reason is reason
    assert words in cause.message


@pytest.mark.parametrize("name", ["a", "not", "registry", "manifest"])
def test_only_the_image_s_whole_name_is_left_out(name: str) -> None:
    message = f'failed to pull "{name}:1": unexpected status from HEAD request: 429 Too Many Requests, not a manifest'
    given = pod([container(waiting=waiting("ErrImagePull", message))])
    given["spec"]["containers"][0]["image"] = f"{name}:1"
    cause = find_cause(stage_of(given), NOW)
    assert cause is not None
    assert "limits the rate of pulls" in cause.message


def test_a_container_that_never_ran_is_no_program_that_ended() -> None:
    """While kubelet waits before it tries again, containerd's error is in the last state, with an exit code."""
    for message, reason, words in (
        (
            "unable to start container process: container init was OOM-killed (memory limit too low?): unknown",
            Reason.OOM_KILLED,
            "raise resources.limits.memory",
        ),
        ('exec: "python": executable file not found in $PATH: unknown', Reason.CONTAINER_NOT_STARTED, "stage server"),
        ("odd", Reason.CONTAINER_NOT_STARTED, "(StartError); see kubectl describe pod"),
    ):
        state = ended(128) | {"reason": "StartError", "message": message}
        cause = find_cause(stage_of(pod([backed_off(state)])), NOW)
        assert cause is not None
        assert (cause.reason, words in cause.message) == (reason, True), cause.message


@pytest.mark.parametrize("code", [70, 78, 137, 0])
def test_exit_codes_of_containers_that_a_webhook_added(code: int) -> None:
    """Only the operator's containers have the stage server's exit codes."""
    cause = find_cause(stage_of(pod([backed_off(ended(code), "istio-proxy")])), NOW)
    assert cause is not None
    assert cause.reason is Reason.CRASH_LOOP_BACK_OFF
    assert f"container istio-proxy, which the operator did not add, ends with exit code {code};" in cause.message


def test_other_failures_of_containers_that_a_webhook_added() -> None:
    memory = find_cause(stage_of(pod([backed_off(ended(137, reason="OOMKilled"), "istio-proxy")])), NOW)
    pull = find_cause(stage_of(pod([container("istio-proxy", waiting=waiting("ImagePullBackOff"))])), NOW)
    assert memory is not None
    assert "limits.memory" not in memory.message
    assert pull is not None
    assert "of container istio-proxy, which the operator did not add" in pull.message


REFUSED: dict[str, tuple[str, str]] = {
    "quota's demand": (
        'pods "x" is forbidden: failed quota: q: must specify limits.memory for: stage',
        "what the quota",
    ),
    "limit range": (
        'pods "x" is forbidden: maximum memory usage per Container is 512Mi, but limit is 4Gi',
        "LimitRange",
    ),
    "runtime class": ('pods "x" is forbidden: pod rejected: RuntimeClass "kata" not found', "create the RuntimeClass"),
    "priority": ('pods "x" is forbidden: no PriorityClass with name high was found', "create the PriorityClass"),
    "webhook down": ('Internal error occurred: failed calling webhook "a.b": connection refused', "repair the webhook"),
    "security": ('pods "x" is forbidden: violates PodSecurity "restricted:latest": allowPriv', "pod-security labels"),
    "quota's scope": (
        'pods "x" is forbidden: insufficient quota to match these scopes: [{PriorityClass In [high]}]',
        "create a ResourceQuota",
    ),
    "OpenShift": (
        'pods "x" is forbidden: unable to validate against any security context constraint: [provider "anyuid"',
        "add-scc-to-user",
    ),
    "policy": (
        "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
        "policy or",
    ),
}


def refusal_of(message: str) -> str:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    owner = {"metadata": {"name": "tiny-llm-1a2b3c4-5d5f7c8b9"}, "status": {"conditions": [failure]}}
    cause = find_cause(replace(stage_of(), replica_sets=(owner,)), NOW)
    assert cause is not None
    return cause.message


def test_a_refusal_stays_the_same_at_each_attempt() -> None:
    """Each attempt has another name of the pod, and a LimitRange complains in random order."""
    owner, limits = (
        "tiny-llm-1a2b3c4-5d5f7c8b9",
        ["maximum memory usage per Pod is 1Gi", "minimum cpu usage per Pod is 9"],
    )
    blocked = 'admission webhook "validate.kyverno.svc-fail" denied the request: resource Pod/a/{} was blocked'
    assert len({refusal_of(blocked.format(f"{owner}-{end}")) for end in ("x8zk2", "q4mzt")}) == 1
    forbidden = [f'pods "{owner}-x8zk2" is forbidden: [{", ".join(order)}]' for order in (limits, limits[::-1])]
    assert len({refusal_of(message) for message in forbidden}) == 1


@pytest.mark.parametrize("name", REFUSED)
def test_why_pods_are_not_created(name: str) -> None:
    message, remedy = REFUSED[name]
    cause = find_cause(stage_of(ReplicaFailure={"status": "True", "reason": "FailedCreate", "message": message}), NOW)
    assert cause is not None
    assert cause.reason is Reason.PODS_REFUSED
    assert remedy in cause.message


ENDED: dict[str, tuple[str, str, str]] = {
    "memory": ("Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi.", "set requests"),
    "disk": ("Evicted", "The node was low on resource: ephemeral-storage.", "write to the node's disk"),
    "empty folder": ("Evicted", 'Usage of EmptyDir volume "tmp" exceeds the limit "1Gi". ', "write to the node's disk"),
    "shutdown": ("Terminated", "Pod was terminated in response to imminent node shutdown.", "shut down"),
    "device": (
        "UnexpectedAdmissionError",
        "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 1",
        "device plugin",
    ),
    "less free": ("OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu", "wait"),
    "numa": ("TopologyAffinityError", "Resources cannot be allocated with Topology locality", "NUMA"),
}


@pytest.mark.parametrize("name", ENDED)
def test_why_a_node_ended_a_pod(name: str) -> None:
    reason, message, remedy = ENDED[name]
    cause = find_cause(stage_of(ended_pods=(pod(phase="Failed", reason=reason, message=message),)), NOW)
    assert cause is not None
    assert cause.reason is Reason.EVICTED
    assert remedy in cause.message
    odd = find_cause(stage_of(ended_pods=(pod(phase="Failed", reason="Odd", message="x"),)), NOW)
    assert odd is not None
    assert odd.message == "pods are ended by their node (Odd: x)"


def test_every_row_names_its_source() -> None:
    for table in (SCHEDULER, REFUSALS, PULLS, STARTS, ENDS):
        assert all(row.source and row.remedy for row in table)
    assert all(row.detail for row in PULLS)


def test_a_volume_that_cannot_be_bound_is_reported_although_the_pod_has_a_node() -> None:
    """Of a StorageClass that waits for the first consumer: the scheduler chose a node, and the provisioner fails."""
    message = 'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded'
    cause = find_cause(stage_of(pod(conditions=unscheduled(message, "SchedulerError"))), NOW)
    assert cause is not None
    assert cause.reason is Reason.VOLUME_NOT_BOUND
    assert cause.message == f"{message}; see kubectl describe pvc"
