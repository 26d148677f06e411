"""What messages of kubelet and container runtimes mean, and what to do about each; see wordings.py."""

from __future__ import annotations

from typing import Final

from omni_operator.reasons import Reason
from omni_operator.state.wordings import wording

_REGISTRY: Final = "containerd core/remotes/docker, or the registry"
_NETWORK: Final = "Go's net package"

PULLS: Final = (
    wording(
        r"no match for platform|no matching manifest for|does not match the specified platform|image operating system|"
        r"no image found in (image index|manifest list)",
        "build the image for the nodes' architecture, or select nodes of the image's",
        "containerd core/images/image.go; docker",
        detail="it has no variant for the node's platform",
    ),
    wording(
        r"toomanyrequests|too many requests|rate limit|pull QPS exceeded",
        "wait, give imagePullSecrets of an account with a higher limit, or use a mirror of the registry",
        "registries (HTTP 429); pkg/kubelet/images/puller.go",
        detail="the registry limits the rate of pulls",
    ),
    wording(
        r"signature ?validation ?failed|signature|is rejected by policy",
        "sign the image, or correct the nodes' signature policy",
        "staging/src/k8s.io/cri-api/pkg/errors/errors.go; CRI-O",
        detail="its signature is not accepted",
    ),
    wording(
        r"x509:|tls: |certificate|HTTP response to HTTPS client",
        "let the nodes' container runtime trust the registry's certificate, or configure the registry as insecure",
        "Go's crypto/tls and net/http packages",
        detail="the registry's certificate is not accepted",
    ),
    wording(
        r"no space left on device|disk quota exceeded",
        "free space on the nodes' image disk, or enlarge it",
        "Linux ENOSPC, EDQUOT",
        detail="the node's disk is full",
    ),
    wording(
        r"pull policy of Never|ErrImageNeverPull",
        "load the image into the nodes, or change the pull policy",
        "pkg/kubelet/images/image_manager.go",
        detail="it is not on the node, and the pull policy is Never",
    ),
    wording(
        r"may require authorization",
        "check name and tag, and imagePullSecrets: the registry does not say which is wrong",
        _REGISTRY,
        detail="no such image, or access refused",
    ),
    wording(
        r"unauthorized|\bdenied\b|forbidden|authorization failed|no basic auth credentials|\b40[13]\b|"
        r"authentication required|token has expired|credentials|invalid_grant|FailedToRetrieveImagePullSecret",
        "check imagePullSecrets, and whether their account may read the image",
        _REGISTRY,
        detail="access refused",
    ),
    wording(
        r"no such host|server misbehaving|name resolution|: lookup ",
        "correct the registry's name, or the nodes' DNS",
        _NETWORK,
        detail="the registry's name is unknown",
    ),
    wording(
        r"connection refused|time-?out|timed out|deadline exceeded|unreachable|no route to host|connection reset|"
        r"proxyconnect|\b50[0234]\b|EOF|context canceled",
        "check whether the nodes reach the registry",
        _NETWORK,
        detail="the registry does not answer",
    ),
    wording(
        r"\b412\b|PolicyViolation",
        "satisfy the registry's policy for images (scan, signature), or change it",
        "goharbor/harbor src/server/middleware",
        detail="a policy of the registry refuses it",
    ),
    wording(
        r"short-name .* did not resolve",
        "write the image with its registry",
        "containers/image pkg/shortnames/shortnames.go",
        detail="its name has no registry",
    ),
    wording(
        r"extraction snapshot|parent snapshot|create snapshot|failed to mount|read-only file system|input/output error|"
        r"structure needs cleaning",
        "repair or replace the node: its image store or disk is damaged",
        "containerd core/unpack/unpacker.go, core/metadata/snapshot.go; Linux EROFS, EIO, EUCLEAN",
        detail="the node cannot store it",
    ),
    wording(
        r"failed to (extract|unpack|verify|register layer)|size validation|unexpected (media type|commit|digest)|"
        r"digest mismatch|hash sum mismatch|"
        r"unsupported|no longer supported|mediaType in manifest",
        "build and push the image again; if it is right, remove it from the node",
        "containerd core/diff, core/content",
        detail="its layers cannot be unpacked",
    ),
    wording(
        r"not found|manifest unknown|name unknown|does not exist|\b404\b",
        "check its name and tag, and imagePullSecrets: some registries hide private images",
        _REGISTRY,
        detail="no such image",
    ),
)
"""Why an image cannot be pulled."""

STARTS: Final = (
    wording(
        r"(secret|configmap) .*not found|couldn't find key",
        "create what is missing, or correct the reference",
        "pkg/kubelet/kubelet_pods.go",
        reason=Reason.MISSING_REFERENCE,
    ),
    wording(
        r"runAsNonRoot|non-numeric user",
        "build the image with a numeric USER other than 0",
        "pkg/kubelet/kuberuntime/security_context.go",
    ),
    wording(
        r"exec format error",
        "build the image for the nodes' architecture",
        "Linux ENOEXEC, from runc",
    ),
    wording(
        r"executable file not found|exec: .*no such file or directory: unknown",
        "name an image of a stage server: it has no `python`",
        "runc libcontainer",
    ),
    wording(
        r"nvidia-container-cli|nvidia-container-runtime|libnvidia|unresolvable CDI devices",
        "check the node's GPU driver and container toolkit",
        "NVIDIA container toolkit; containerd internal/cri/cdi",
    ),
    wording(
        r"init was OOM-killed",
        "raise resources.limits.memory of the stage",
        "runc libcontainer/process_linux.go",
        reason=Reason.OOM_KILLED,
    ),
    wording(r"no space left on device", "free space on the node's disk, or enlarge it", "Linux ENOSPC"),
    wording(
        r"no runtime for|RuntimeHandler",
        "install the runtime on the nodes, or correct runtimeClassName",
        "containerd internal/cri/server",
    ),
)
"""Why a container is not configured, created or started."""

ENDS: Final = (
    wording(
        r"^Evicted: .*(ephemeral|EmptyDir|local storage|nodefs|imagefs|DiskPressure|inodes)",
        "lower what pods write to the node's disk, set requests of ephemeral-storage, or enlarge the disk",
        "pkg/kubelet/eviction/helpers.go, eviction_manager.go",
    ),
    wording(
        r"^Evicted: .*(PIDPressure|resource: pids)",
        "processes used up the node's ids: lower podPidsLimit, or spread pods over more nodes",
        "pkg/kubelet/eviction/helpers.go",
    ),
    wording(r"^Evicted: .*memory", "set requests that fit, or priorityClassName", "pkg/kubelet/eviction/helpers.go"),
    wording(
        r"^(Preempt|Preempting)",
        "a pod of higher priority took the node: add nodes, or set priorityClassName",
        "pkg/kubelet/preemption/preemption.go",
    ),
    wording(
        r"^(NodeShutdown|Terminated|Shutdown|NodeLost)",
        "the node was shut down: wait for the replacement of the pod, or add nodes",
        "pkg/kubelet/nodeshutdown/nodeshutdown_manager.go",
    ),
    wording(
        r"^UnexpectedAdmissionError: .*(devices? |Allocate failed)",
        "the node lost devices since the pod was scheduled: check its device plugin and GPUs",
        "pkg/kubelet/cm/devicemanager/manager.go",
    ),
    wording(
        r"^OutOf",
        "the node had fewer free resources than the scheduler knew: wait; if it lasts, see kubectl describe node",
        "pkg/kubelet/lifecycle/predicate.go",
    ),
    wording(
        r"^TopologyAffinityError",
        "no NUMA node has the CPUs and devices: change resources, or the node's topologyManagerPolicy",
        "pkg/kubelet/cm/topologymanager/topology_manager.go",
    ),
    wording(
        r"^(NodeAffinity|TaintToleration)|didn't match",
        "labels or taints of the node changed: correct nodeSelector, affinity or tolerations",
        "pkg/kubelet/lifecycle/predicate.go",
    ),
    wording(
        r"^DeadlineExceeded", "remove activeDeadlineSeconds, which a webhook set", "pkg/kubelet/active_deadline.go"
    ),
)
"""Why a node ended or refused a pod; the text is `REASON: MESSAGE` of its status."""
