"""What messages of the scheduler and the API server mean, and what to do about each; container_wordings.py has those of
kubelet and container runtimes.

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


def wording(form: str, remedy: str, source: str, **more: object) -> Wording:
    """Returns a row. form: a regular expression, for which case does not matter; more: further fields of Wording."""
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
    wording(
        r"^(Insufficient |Too many pods)",
        "add nodes, or lower resources or replicas",
        f"{_PLUGINS}/noderesources/fit.go",
        capacity=True,
    ),
    # 1.34 no longer names the taint.
    wording(
        r"untolerated taint\(s\)",
        "add tolerations for the taints of the nodes that may run the pod, or repair the nodes if Kubernetes tainted "
        "them: kubectl describe nodes",
        f"{_PLUGINS}/tainttoleration/taint_toleration.go",
    ),
    wording(
        r"untolerated taint \{node\.kubernetes\.io/(not-ready|unreachable|network-unavailable|out-of-service)",
        "repair the nodes that are not ready: kubectl get nodes",
        f"{_PLUGINS}/tainttoleration/taint_toleration.go",
    ),
    wording(
        r"untolerated taint \{node\.kubernetes\.io/(disk|memory|pid)-pressure",
        "free disk, memory or process ids on the nodes, or add nodes: kubectl describe nodes",
        "pkg/controller/nodelifecycle/node_lifecycle_controller.go",
        capacity=True,
    ),
    wording(
        r"untolerated taint \{node\.kubernetes\.io/unschedulable|were unschedulable|unknown conditions",
        "make cordoned nodes schedulable: kubectl uncordon NODE",
        f"{_PLUGINS}/nodeunschedulable/node_unschedulable.go",
    ),
    wording(
        r"untolerated taint \{(ToBeDeletedByClusterAutoscaler|DeletionCandidateOfClusterAutoscaler|karpenter\.sh/disr)",
        "an autoscaler removes the nodes: wait for other ones, or add nodes",
        "kubernetes/autoscaler utils/taints; kubernetes-sigs/karpenter pkg/apis/v1/taints.go",
        capacity=True,
    ),
    wording(
        r"untolerated taint \{[^}]*(uninitialized|unregistered|agent-not-ready|startup)",
        "wait until the nodes are set up; if it lasts, see the component that must remove the taint (cloud provider, "
        "network or storage plugin)",
        "k8s.io/cloud-provider api/well_known_taints.go; Karpenter, Cilium, CSI drivers",
    ),
    wording(
        r"untolerated taint",
        "add tolerations for the taints of the nodes that may run the pod",
        f"{_PLUGINS}/tainttoleration/taint_toleration.go",
    ),
    wording(
        r"node affinity/selector|scheduler-enforced node affinity|requested node name|pod affinity terms conflict",
        "correct nodeSelector or affinity, or label nodes",
        f"{_PLUGINS}/nodeaffinity/node_affinity.go, nodename/node_name.go",
    ),
    wording(
        r"pod affinity rules|anti-affinity rules",
        "correct affinity.podAffinity or podAntiAffinity, or add nodes that satisfy it",
        f"{_PLUGINS}/interpodaffinity/filtering.go",
    ),
    wording(
        r"topology spread constraints",
        "relax topology, or add nodes in the topology domains that have too few pods",
        f"{_PLUGINS}/podtopologyspread/plugin.go",
    ),
    wording(
        r"free ports for the requested pod ports",
        "free the host ports, or add nodes",
        f"{_PLUGINS}/nodeports/node_ports.go",
        capacity=True,
    ),
    wording(
        r"ReadWriteOncePod access mode already in-use|had no available disk",
        _ANOTHER_POD,
        f"{_PLUGINS}/volumerestrictions/volume_restrictions.go",
        capacity=True,
    ),
    wording(
        r'persistentvolumeclaim "[^"]*" not found',
        "see kubectl get pvc: create the claim, or correct its name in the spec",
        f"{_PLUGINS}/volumebinding/volume_binding.go",
        reason=Reason.VOLUME_NOT_BOUND,
        hard=True,
    ),
    wording(
        r'persistentvolumeclaim "[^"]*" (is being deleted|bound to non-existent)|pvc\(s\) bound to non-existent',
        "see kubectl get pvc: delete the claim, and create it again once it is gone",
        f"{_PLUGINS}/volumebinding/volume_binding.go, binder.go",
        reason=Reason.VOLUME_NOT_BOUND,
        hard=True,
    ),
    wording(
        r"unbound immediate persistentvolumeclaims|find available persistent volumes to bind",
        "see kubectl get pvc: create the PersistentVolume or StorageClass that the claim waits for",
        f"{_PLUGINS}/volumebinding/volume_binding.go, binder.go",
        reason=Reason.VOLUME_NOT_BOUND,
    ),
    wording(
        r"volume node affinity conflict|PersistentVolume's node affinity|no available volume zone",
        "the volume can be used only on other nodes: let the pod run there (nodeSelector, tolerations, free "
        "resources), or use a volume that all nodes can mount",
        f"{_PLUGINS}/volumebinding/binder.go, volumezone/volume_zone.go",
        reason=Reason.VOLUME_NOT_BOUND,
    ),
    wording(
        r"enough free storage",
        "add storage, or lower the size of the claim",
        f"{_PLUGINS}/volumebinding/binder.go",
        reason=Reason.VOLUME_NOT_BOUND,
    ),
    wording(
        r"exceed max volume count",
        "add nodes, or attach fewer volumes to each",
        f"{_PLUGINS}/nodevolumelimits/csi.go",
        capacity=True,
    ),
    wording(
        r"persistentvolumeclaim|storageclass|persistentvolume |binding volumes",
        "see kubectl describe pvc",
        f"{_PLUGINS}/volumebinding, volumezone, nodevolumelimits",
        reason=Reason.VOLUME_NOT_BOUND,
    ),
    wording(
        r"cannot allocate all claims|cannot fit resource|in the process of being allocated|resourceclaim in use",
        f"add nodes with free devices, or lower the claims; {_DEVICES}",
        f"{_PLUGINS}/dynamicresources/dynamicresources.go",
        capacity=True,
    ),
    wording(r"resource ?claim|device class", _DEVICES, f"{_PLUGINS}/dynamicresources/dynamicresources.go"),
    wording(
        r"scheduling gates",
        "the controller that set the gates must remove them, such as Kueue when the pod's workload is admitted",
        "pkg/registry/core/pod/strategy.go",
        patient=True,
    ),
    wording(r"no nodes available to schedule", "add nodes", "pkg/scheduler/schedule_one.go", capacity=True),
)
"""Reasons for which a node, or every node, cannot run a pod."""

REFUSALS: Final = (
    wording(
        r"failed quota: ",
        "set what the quota demands in resources of the stage, or in a LimitRange of the namespace",
        "staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go",
    ),
    wording(
        r"insufficient quota to match these scopes",
        "create a ResourceQuota with these scopes in the namespace, or change priorityClassName",
        "staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go",
    ),
    wording(
        r"status unknown for quota|quota evaluation timed out|on resourcequotas ",
        "wait: the cluster computes the quota's use; if it lasts, see kubectl describe quota",
        "staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go",
    ),
    wording(
        r"any security context constraint",
        "let the pipeline's ServiceAccount use a SecurityContextConstraint that allows the user of the image, such as "
        "nonroot-v2: oc adm policy add-scc-to-user",
        "openshift/apiserver-library-go pkg/securitycontextconstraints/sccadmission/admission.go",
    ),
    wording(
        r"node selector conflicts with|tolerations conflict with",
        "correct nodeSelector or tolerations in the spec, or the annotations of the namespace",
        "plugin/pkg/admission/podnodeselector, podtolerationrestriction",
    ),
    wording(
        r"violates PodSecurity",
        "pods of stages satisfy the level `restricted`, so remove what the spec or a webhook adds, or change the "
        "namespace's pod-security labels",
        "staging/src/k8s.io/pod-security-admission/admission/admission.go",
    ),
    wording(
        r"(maximum|minimum) \S+ usage per |limit to request ratio",
        "change resources of the stage, or the namespace's LimitRange",
        "plugin/pkg/admission/limitranger/admission.go",
    ),
    wording(
        r"no PriorityClass with name",
        "create the PriorityClass, or correct priorityClassName",
        "plugin/pkg/admission/priority/admission.go",
    ),
    wording(
        r"RuntimeClass .*not found",
        "create the RuntimeClass, or correct runtimeClassName",
        "plugin/pkg/admission/runtimeclass/admission.go",
    ),
    wording(
        r"serviceaccount .*not found|error looking up service account",
        "create the ServiceAccount, or correct serviceAccountName; the operator creates only the one of pipelines "
        "that name none",
        "plugin/pkg/admission/serviceaccount/admission.go",
    ),
    wording(
        r"failed calling webhook",
        "repair the webhook's service, or remove its configuration: kubectl get mutatingwebhookconfigurations,"
        "validatingwebhookconfigurations",
        "staging/src/k8s.io/apiserver/pkg/util/webhook/error.go",
    ),
    wording(
        r"admission webhook .* denied|(Validating|Mutating)AdmissionPolicy|image policy webhook",
        "change the policy or the spec",
        "staging/src/k8s.io/apiserver/pkg/admission/plugin",
    ),
    wording(
        r"because it is being terminated",
        "the namespace is being deleted: create the pipeline in another one",
        "staging/src/k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle/admission.go",
    ),
    wording(r"^spec\.|is invalid", "correct the field in the spec", "pkg/apis/core/validation/validation.go"),
)
"""Why the API server does not create pods. Quotas that are used up are apart (pod_causes.py)."""
