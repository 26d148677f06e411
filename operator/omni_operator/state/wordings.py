"""What messages of the scheduler, kubelet, container runtimes and the API server mean, and what to do about each.

Tables of upstream's wordings, in Kubernetes 1.30 to 1.34 and containerd 1.7 to 2.1. `source` names the file that has
the text: of Kubernetes, unless it names another program. A text that no row knows is reported as it is, without a
remedy, because a wrong remedy costs more time than none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from omni_operator.reasons import Reason


@dataclass(frozen=True, slots=True)
class Wording:
    """A text of another program and what to do about it."""

    form: re.Pattern[str]
    remedy: str
    source: str
    reason: Reason | None = None
    """The reason of the condition, if it is not the table's."""
    hard: bool = False
    """Whether it never passes by itself."""
    capacity: bool = False
    """Whether the pod would fit if another pod of the pipeline ended."""
    patient: bool = False
    """Whether it may last for hours in a healthy cluster."""
    detail: str = ""
    """A short text to show instead of the message; of pulls, whose messages are long."""


def _wording(form: str, remedy: str, source: str, **more: object) -> Wording:
    return Wording(re.compile(form, re.IGNORECASE), remedy, source, **more)  # type: ignore[arg-type]


def find_wording(table: tuple[Wording, ...], text: str) -> Wording | None:
    """Returns the first row whose form occurs in the text; None if there is none."""
    return next((row for row in table if row.form.search(text)), None)


_PLUGINS: Final = "pkg/scheduler/framework/plugins"
_ANOTHER_POD: Final = (
    "another pod uses the volume: set spec.rollout.strategy: Recreate (for a change within a revision: maxSurge: 0, "
    "maxUnavailable: 1), or use a claim with ReadWriteMany"
)
_DEVICES: Final = "see kubectl describe resourceclaim and kubectl get deviceclasses"

SCHEDULER: Final = (
    _wording(
        r"^(Insufficient |Too many pods)",
        "add nodes, or lower resources or replicas",
        f"{_PLUGINS}/noderesources/fit.go",
        capacity=True,
    ),
    # 1.34 no longer names the taint.
    _wording(
        r"untolerated taint\(s\)",
        "add tolerations for the taints of the nodes that may run the pod, or repair the nodes if Kubernetes tainted "
        "them: kubectl describe nodes",
        f"{_PLUGINS}/tainttoleration/taint_toleration.go",
    ),
    _wording(
        r"untolerated taint \{node\.kubernetes\.io/(not-ready|unreachable|network-unavailable|out-of-service)",
        "repair the nodes that are not ready: kubectl get nodes",
        f"{_PLUGINS}/tainttoleration/taint_toleration.go",
    ),
    _wording(
        r"untolerated taint \{node\.kubernetes\.io/(disk|memory|pid)-pressure",
        "free disk, memory or process ids on the nodes, or add nodes: kubectl describe nodes",
        "pkg/controller/nodelifecycle/node_lifecycle_controller.go",
        capacity=True,
    ),
    _wording(
        r"untolerated taint \{node\.kubernetes\.io/unschedulable",
        "make cordoned nodes schedulable: kubectl uncordon NODE",
        f"{_PLUGINS}/nodeunschedulable/node_unschedulable.go",
    ),
    _wording(
        r"untolerated taint \{(ToBeDeletedByClusterAutoscaler|DeletionCandidateOfClusterAutoscaler|karpenter\.sh/disr)",
        "an autoscaler removes the nodes: wait for other ones, or add nodes",
        "kubernetes/autoscaler utils/taints; kubernetes-sigs/karpenter pkg/apis/v1/taints.go",
        capacity=True,
    ),
    _wording(
        r"untolerated taint \{[^}]*(uninitialized|unregistered|agent-not-ready|startup)",
        "wait until the nodes are set up; if it lasts, see the component that must remove the taint (cloud provider, "
        "network or storage plugin)",
        "k8s.io/cloud-provider api/well_known_taints.go; Karpenter, Cilium, CSI drivers",
    ),
    _wording(
        r"untolerated taint",
        "add tolerations for the taints of the nodes that may run the pod",
        f"{_PLUGINS}/tainttoleration/taint_toleration.go",
    ),
    _wording(
        r"node affinity/selector|scheduler-enforced node affinity|requested node name|pod affinity terms conflict",
        "correct nodeSelector or affinity, or label nodes",
        f"{_PLUGINS}/nodeaffinity/node_affinity.go, nodename/node_name.go",
    ),
    _wording(
        r"pod affinity rules|anti-affinity rules",
        "correct affinity.podAffinity or podAntiAffinity, or add nodes that satisfy it",
        f"{_PLUGINS}/interpodaffinity/filtering.go",
    ),
    _wording(
        r"topology spread constraints",
        "relax topology, or add nodes in the topology domains that have too few pods",
        f"{_PLUGINS}/podtopologyspread/plugin.go",
    ),
    _wording(
        r"were unschedulable|unknown conditions",
        "make cordoned nodes schedulable: kubectl uncordon NODE",
        f"{_PLUGINS}/nodeunschedulable/node_unschedulable.go",
    ),
    _wording(
        r"free ports for the requested pod ports",
        "free the host ports, or add nodes",
        f"{_PLUGINS}/nodeports/node_ports.go",
        capacity=True,
    ),
    _wording(
        r"ReadWriteOncePod access mode already in-use|had no available disk",
        _ANOTHER_POD,
        f"{_PLUGINS}/volumerestrictions/volume_restrictions.go",
        capacity=True,
    ),
    _wording(
        r'persistentvolumeclaim "[^"]*" not found',
        "see kubectl get pvc: create the claim, or correct its name in the spec",
        f"{_PLUGINS}/volumebinding/volume_binding.go",
        reason=Reason.VOLUME_NOT_BOUND,
        hard=True,
    ),
    _wording(
        r'persistentvolumeclaim "[^"]*" (is being deleted|bound to non-existent)|pvc\(s\) bound to non-existent',
        "see kubectl get pvc: delete the claim, and create it again once it is gone",
        f"{_PLUGINS}/volumebinding/volume_binding.go, binder.go",
        reason=Reason.VOLUME_NOT_BOUND,
        hard=True,
    ),
    _wording(
        r"unbound immediate persistentvolumeclaims|find available persistent volumes to bind",
        "see kubectl get pvc: create the PersistentVolume or StorageClass that the claim waits for",
        f"{_PLUGINS}/volumebinding/volume_binding.go, binder.go",
        reason=Reason.VOLUME_NOT_BOUND,
    ),
    _wording(
        r"volume node affinity conflict|PersistentVolume's node affinity|no available volume zone",
        "the volume can be used only on other nodes: let the pod run there (nodeSelector, tolerations, free "
        "resources), or use a volume that all nodes can mount",
        f"{_PLUGINS}/volumebinding/binder.go, volumezone/volume_zone.go",
        reason=Reason.VOLUME_NOT_BOUND,
    ),
    _wording(
        r"enough free storage",
        "add storage, or lower the size of the claim",
        f"{_PLUGINS}/volumebinding/binder.go",
        reason=Reason.VOLUME_NOT_BOUND,
    ),
    _wording(
        r"exceed max volume count",
        "add nodes, or attach fewer volumes to each",
        f"{_PLUGINS}/nodevolumelimits/csi.go",
        capacity=True,
    ),
    _wording(
        r"persistentvolumeclaim|storageclass|persistentvolume ",
        "see kubectl describe pvc",
        f"{_PLUGINS}/volumebinding, volumezone, nodevolumelimits",
        reason=Reason.VOLUME_NOT_BOUND,
    ),
    _wording(
        r"cannot allocate all claims|cannot fit resource|in the process of being allocated|resourceclaim in use",
        f"add nodes with free devices, or lower the claims; {_DEVICES}",
        f"{_PLUGINS}/dynamicresources/dynamicresources.go",
        capacity=True,
    ),
    _wording(r"resource ?claim|device class", _DEVICES, f"{_PLUGINS}/dynamicresources/dynamicresources.go"),
    _wording(
        r"scheduling gates",
        "the controller that set the gates must remove them, such as Kueue when the pod's workload is admitted",
        "pkg/registry/core/pod/strategy.go",
        patient=True,
    ),
    _wording(r"no nodes available to schedule", "add nodes", "pkg/scheduler/schedule_one.go", capacity=True),
)
"""Reasons for which a node, or every node, cannot run a pod."""

REFUSALS: Final = (
    _wording(
        r"failed quota: ",
        "set what the quota demands in resources of the stage, or in a LimitRange of the namespace",
        "staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go",
    ),
    _wording(
        r"insufficient quota to match these scopes",
        "create a ResourceQuota with these scopes in the namespace, or change priorityClassName",
        "staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go",
    ),
    _wording(
        r"status unknown for quota|quota evaluation timed out|on resourcequotas ",
        "wait: the cluster computes the quota's use; if it lasts, see kubectl describe quota",
        "staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go",
    ),
    _wording(
        r"any security context constraint",
        "let the pipeline's ServiceAccount use a SecurityContextConstraint that allows the user of the image, such as "
        "nonroot-v2: oc adm policy add-scc-to-user",
        "openshift/apiserver-library-go pkg/securitycontextconstraints/sccadmission/admission.go",
    ),
    _wording(
        r"node selector conflicts with|tolerations conflict with",
        "correct nodeSelector or tolerations in the spec, or the annotations of the namespace",
        "plugin/pkg/admission/podnodeselector, podtolerationrestriction",
    ),
    _wording(
        r"violates PodSecurity",
        "pods of stages satisfy the level `restricted`, so remove what the spec or a webhook adds, or change the "
        "namespace's pod-security labels",
        "staging/src/k8s.io/pod-security-admission/admission/admission.go",
    ),
    _wording(
        r"(maximum|minimum) \S+ usage per |limit to request ratio",
        "change resources of the stage, or the namespace's LimitRange",
        "plugin/pkg/admission/limitranger/admission.go",
    ),
    _wording(
        r"no PriorityClass with name",
        "create the PriorityClass, or correct priorityClassName",
        "plugin/pkg/admission/priority/admission.go",
    ),
    _wording(
        r"RuntimeClass .*not found",
        "create the RuntimeClass, or correct runtimeClassName",
        "plugin/pkg/admission/runtimeclass/admission.go",
    ),
    _wording(
        r"serviceaccount .*not found|error looking up service account",
        "wait: the operator creates the ServiceAccount; if it lasts, see the operator's log",
        "plugin/pkg/admission/serviceaccount/admission.go",
    ),
    _wording(
        r"failed calling webhook",
        "repair the webhook's service, or remove its configuration: kubectl get mutatingwebhookconfigurations,"
        "validatingwebhookconfigurations",
        "staging/src/k8s.io/apiserver/pkg/util/webhook/error.go",
    ),
    _wording(
        r"admission webhook .* denied|(Validating|Mutating)AdmissionPolicy|image policy webhook",
        "change the policy or the spec",
        "staging/src/k8s.io/apiserver/pkg/admission/plugin",
    ),
    _wording(
        r"because it is being terminated",
        "the namespace is being deleted: create the pipeline in another one",
        "staging/src/k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle/admission.go",
    ),
    _wording(r"^spec\.|is invalid", "correct the field in the spec", "pkg/apis/core/validation/validation.go"),
)
"""Why the API server does not create pods. Quotas that are used up are apart (capacity.py)."""

_REGISTRY: Final = "containerd core/remotes/docker, or the registry"
_NETWORK: Final = "Go's net package"

PULLS: Final = (
    _wording(
        r"no match for platform|no matching manifest for|does not match the specified platform|image operating system|"
        r"no image found in (image index|manifest list)",
        "build the image for the nodes' architecture, or select nodes of the image's",
        "containerd core/images/image.go; docker",
        detail="it has no variant for the node's platform",
    ),
    _wording(
        r"toomanyrequests|too many requests|rate limit|pull QPS exceeded",
        "wait, give imagePullSecrets of an account with a higher limit, or use a mirror of the registry",
        "registries (HTTP 429); pkg/kubelet/images/puller.go",
        detail="the registry limits the rate of pulls",
    ),
    _wording(
        r"signature ?validation ?failed|signature|is rejected by policy",
        "sign the image, or correct the nodes' signature policy",
        "staging/src/k8s.io/cri-api/pkg/errors/errors.go; CRI-O",
        detail="its signature is not accepted",
    ),
    _wording(
        r"x509:|tls: |certificate|HTTP response to HTTPS client",
        "let the nodes' container runtime trust the registry's certificate, or configure the registry as insecure",
        "Go's crypto/tls and net/http packages",
        detail="the registry's certificate is not accepted",
    ),
    _wording(
        r"no space left on device|disk quota exceeded",
        "free space on the nodes' image disk, or enlarge it",
        "Linux ENOSPC, EDQUOT",
        detail="the node's disk is full",
    ),
    _wording(
        r"pull policy of Never|ErrImageNeverPull",
        "load the image into the nodes, or change the pull policy",
        "pkg/kubelet/images/image_manager.go",
        detail="it is not on the node, and the pull policy is Never",
    ),
    _wording(
        r"may require authorization",
        "check name and tag, and imagePullSecrets: the registry does not say which is wrong",
        _REGISTRY,
        detail="no such image, or access refused",
    ),
    _wording(
        r"unauthorized|\bdenied\b|forbidden|authorization failed|no basic auth credentials|\b40[13]\b|"
        r"authentication required|token has expired|pull credentials",
        "check imagePullSecrets, and whether their account may read the image",
        _REGISTRY,
        detail="access refused",
    ),
    _wording(
        r"no such host|server misbehaving|name resolution|: lookup ",
        "correct the registry's name, or the nodes' DNS",
        _NETWORK,
        detail="the registry's name is unknown",
    ),
    _wording(
        r"connection refused|time-?out|timed out|deadline exceeded|unreachable|no route to host|connection reset|"
        r"proxyconnect|\b50[0234]\b|EOF|context canceled",
        "check whether the nodes reach the registry",
        _NETWORK,
        detail="the registry does not answer",
    ),
    _wording(
        r"\b412\b|PolicyViolation",
        "satisfy the registry's policy for images (scan, signature), or change it",
        "goharbor/harbor src/server/middleware",
        detail="a policy of the registry refuses it",
    ),
    _wording(
        r"short-name .* did not resolve",
        "write the image with its registry",
        "containers/image pkg/shortnames/shortnames.go",
        detail="its name has no registry",
    ),
    _wording(
        r"failed to (extract|unpack|verify)|unexpected (media type|commit|digest)|digest mismatch|hash sum mismatch|"
        r"unsupported|no longer supported|mediaType in manifest",
        "build and push the image again; if it is right, remove it from the node",
        "containerd core/diff, core/content",
        detail="its layers cannot be unpacked",
    ),
    _wording(
        r"not found|manifest unknown|name unknown|does not exist|\b404\b",
        "check its name and tag, and imagePullSecrets: some registries hide private images",
        _REGISTRY,
        detail="no such image",
    ),
)
"""Why an image cannot be pulled."""

STARTS: Final = (
    _wording(
        r"(secret|configmap) .*not found|couldn't find key",
        "create what is missing, or correct the reference",
        "pkg/kubelet/kubelet_pods.go",
        reason=Reason.MISSING_REFERENCE,
    ),
    _wording(
        r"runAsNonRoot|non-numeric user",
        "build the image with a numeric USER other than 0",
        "pkg/kubelet/kuberuntime/security_context.go",
    ),
    _wording(
        r"exec format error",
        "build the image for the nodes' architecture",
        "Linux ENOEXEC, from runc",
    ),
    _wording(
        r"executable file not found|exec: .*no such file or directory: unknown",
        "name an image of a stage server: it has no `python`",
        "runc libcontainer",
    ),
    _wording(
        r"nvidia-container-cli|nvidia-container-runtime|libnvidia|unresolvable CDI devices",
        "check the node's GPU driver and container toolkit",
        "NVIDIA container toolkit; containerd internal/cri/cdi",
    ),
    _wording(r"no space left on device", "free space on the node's disk, or enlarge it", "Linux ENOSPC"),
    _wording(
        r"no runtime for|RuntimeHandler",
        "install the runtime on the nodes, or correct runtimeClassName",
        "containerd internal/cri/server",
    ),
)
"""Why a container is not configured, created or started."""

ENDS: Final = (
    _wording(
        r"^Evicted: .*(ephemeral|EmptyDir|local storage|nodefs|imagefs|DiskPressure|inodes)",
        "lower what pods write to the node's disk, set requests of ephemeral-storage, or enlarge the disk",
        "pkg/kubelet/eviction/helpers.go, eviction_manager.go",
    ),
    _wording(r"^Evicted: .*memory", "set requests that fit, or priorityClassName", "pkg/kubelet/eviction/helpers.go"),
    _wording(
        r"^(Preempt|Preempting)",
        "a pod of higher priority took the node: add nodes, or set priorityClassName",
        "pkg/kubelet/preemption/preemption.go",
    ),
    _wording(
        r"^(NodeShutdown|Terminated|Shutdown|NodeLost)",
        "the node was shut down: wait for the replacement of the pod, or add nodes",
        "pkg/kubelet/nodeshutdown/nodeshutdown_manager.go",
    ),
    _wording(
        r"^UnexpectedAdmissionError: .*(devices? |Allocate failed)",
        "the node lost devices since the pod was scheduled: check its device plugin and GPUs",
        "pkg/kubelet/cm/devicemanager/manager.go",
    ),
    _wording(
        r"^OutOf",
        "the node had fewer free resources than the scheduler knew: wait; if it lasts, see kubectl describe node",
        "pkg/kubelet/lifecycle/predicate.go",
    ),
    _wording(
        r"^TopologyAffinityError",
        "no NUMA node has the CPUs and devices: change resources, or the node's topologyManagerPolicy",
        "pkg/kubelet/cm/topologymanager/topology_manager.go",
    ),
    _wording(
        r"^(NodeAffinity|TaintToleration)|didn't match",
        "labels or taints of the node changed: correct nodeSelector, affinity or tolerations",
        "pkg/kubelet/lifecycle/predicate.go",
    ),
    _wording(
        r"^DeadlineExceeded", "remove activeDeadlineSeconds, which a webhook set", "pkg/kubelet/active_deadline.go"
    ),
)
"""Why a node ended or refused a pod; the text is `REASON: MESSAGE` of its status."""
