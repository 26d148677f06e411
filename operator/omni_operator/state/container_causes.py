"""Finds out why a container does not run, from its status as written by kubelet.

A cause must stay the same while the problem is the same. While a container keeps crashing, kubelet cycles through
waiting, running and terminated, and counts restarts. So messages contain only what does not change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from omni_kube.objects import Manifest
from omni_operator.names import FETCH_CONTAINER, STAGE_CONTAINER
from omni_operator.reasons import Reason
from omni_operator.state.container_wordings import PULLS, STARTS
from omni_operator.state.wordings import find_wording
from omni_proto.pod_contract import ExitCode, TerminationReason, parse_termination

_STOPPED_FROM_OUTSIDE: Final = frozenset({ExitCode.DRAINED, 137, ExitCode.ABORTED})
"""Exit codes after a signal from kubelet: drained after SIGTERM, killed, and aborted. A second SIGTERM aborts a drain;
the first SIGTERM aborts a download."""
_PULL_FAILURES: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "RegistryUnavailable",
        "ImageInspectError",
        "SignatureValidationFailed",
    }
)
"""Of pkg/kubelet/images/types.go and cri-api/pkg/errors/errors.go."""
_STARTING: Final = frozenset({"ContainerCreating", "PodInitializing", "CrashLoopBackOff", ""})
"""Reasons of a container that waits and has no failure of its own: the failure, if any, is in its last state."""
_NEVER_RAN: Final = ("StartError", "ContainerCannotRun")
"""Reasons of a container that ended without an exit code of its own: of containerd and Docker."""
_OWN: Final = (STAGE_CONTAINER, FETCH_CONTAINER)
_CORRECT_FOREIGN: Final = "correct the webhook or policy that adds the container"
_DESCRIBE: Final = "see kubectl describe pod"
_USER: Final = re.compile(r"//[^/@\s]+@")
"""User and password in a URL."""
_CONTAINER_ID: Final = re.compile(r"\b[0-9a-f]{12,}\b")
_BACK_OFF: Final = re.compile(r'^Back-off pulling image "[^"]*"(?:: \w+: )?')
"""What kubelet puts before the error while it waits; since 1.31 the error follows."""
_QUERY: Final = re.compile(r"(?<=\S)\?[^\s\"]*")
"""The query of a URL: registries redirect to signed ones, whose `X-Amz-Signature` is no complaint about a signature."""
_EACH_TIME: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}\b|:\d+(?=->)|(?<=extract-)\d+-\S+")
"""Parts of an error of a pull that differ at each attempt: identifiers of requests, ports, temporary names."""
_MAX_DETAIL: Final = 600
_MAX_FOREIGN_DETAIL: Final = 200


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a part of a stage does not run."""

    reason: Reason
    message: str
    """What is wrong and what to do, without the stage's name."""
    hard: bool = True
    """Whether it is a failure. Otherwise it may be part of a healthy rollout, e.g. while nodes are being added."""


def find_container_cause(spec: Manifest, status: Mapping[str, Any], init: bool) -> Cause | None:
    """Returns why the container is not ready; None if it is ready, or if no problem is known.

    A container that runs again after a failure keeps that failure's cause until it is ready. An init container that
    runs for the first time, or has succeeded, has no cause.

    spec is the container in the pod's spec, status its entry in containerStatuses or initContainerStatuses.
    """
    spec = {"name": status.get("name", ""), **spec}
    state = status.get("state") or {}
    waiting = state.get("waiting")
    if waiting is not None:
        cause = _waiting_cause(spec, str(waiting.get("reason", "")), str(waiting.get("message", "")))
        if cause is not None:
            return cause
    if status.get("ready") or (init and "running" in state and not status.get("restartCount")):
        return None
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated")
    if ended is None or (init and ended.get("exitCode") == 0):
        return None
    return _ended_cause(spec, ended)


def shorten_termination(text: str) -> tuple[str, str, str]:
    """Returns reason, message and field of a termination message, each cut to a maximum length.

    Text that is not in the stage server's format, as other images write it, becomes the message, and is cut shorter.

    Kubelet reads the message from the container's termination log file (terminationMessagePolicy: File). It never reads
    the container's output, which may contain anything that a program prints when it dies.
    """
    said = parse_termination(text)
    if said is None:
        return "", " ".join(text.split())[:_MAX_FOREIGN_DETAIL], ""
    return said.reason, " ".join(said.message.split())[:_MAX_DETAIL], " ".join(said.field.split())[:128]


def _waiting_cause(spec: Manifest, reason: str, message: str) -> Cause | None:
    image, name = spec.get("image", ""), spec["name"]
    if reason in _STARTING:
        return None
    if reason == "InvalidImageName":
        remedy = "correct image in the spec" if name in _OWN else _CORRECT_FOREIGN
        return Cause(
            Reason.INVALID_IMAGE_NAME, f"image {image!r}{_whose_image(name)} is not a valid image name; {remedy}"
        )
    if reason in _PULL_FAILURES:
        why = _describe_pull(image, message, reason)
        return Cause(Reason.IMAGE_PULL_BACK_OFF, f"image {image}{_whose_image(name)} cannot be pulled{why}")
    return _start_cause(name, reason, message)


def _start_cause(name: str, reason: str, message: str) -> Cause:
    row = find_wording(STARTS, message)
    # The text of other failures may repeat the command, whose arguments may hold secrets.
    said = f": {_short(_CONTAINER_ID.sub('ID', message))}" if message and reason == "CreateContainerConfigError" else ""
    return Cause(
        (row and row.reason) or Reason.CONTAINER_NOT_STARTED,
        f"container {_whose(name)} cannot be started ({reason}){said}; {row.remedy if row else _DESCRIBE}",
    )


def _whose(name: str) -> str:
    """Returns a container's name, with a note if it is not the operator's, such as a sidecar that a webhook adds."""
    return name if name in _OWN else f"{name}, which the operator did not add,"


def _whose_image(name: str) -> str:
    return "" if name in _OWN else f" of container {_whose(name)}"


def _describe_pull(image: str, message: str, reason: str) -> str:
    """Returns why an image cannot be pulled, and what to do. Each container runtime words the message differently."""
    registry, repository = _split_image(image)
    message = _EACH_TIME.sub("", _QUERY.sub("", _BACK_OFF.sub("", message)))
    # Names may contain any word, such as "denied".
    text = re.sub(rf"\S*(?<![\w.-]){re.escape(repository)}(?![\w.-])\S*", "", message)
    if registry:
        text = text.replace(registry, "")
    row = find_wording(PULLS, f"{text} {reason}")
    if row is not None:
        return f" ({row.detail}); {row.remedy}"
    if text.strip(' "'):
        return f": {_short(_USER.sub('//', message))}"
    return "; check its name and tag, imagePullSecrets, and whether nodes reach the registry"


def _split_image(image: str) -> tuple[str, str]:
    """Returns registry and repository of an image; the registry is empty if the name has none."""
    name = image.partition("@")[0]
    head, slash, tail = name.partition("/")
    has_registry = bool(slash) and (any(mark in head for mark in ".:") or head == "localhost")
    path = tail if has_registry else name
    return (head if has_registry else ""), path.rpartition(":")[0] or path


def _ended_cause(spec: Manifest, ended: Mapping[str, Any]) -> Cause:
    name, code = spec["name"], int(ended.get("exitCode", 0))
    if (reason := str(ended.get("reason", ""))) in _NEVER_RAN:
        return _start_cause(name, reason, str(ended.get("message", "")))
    if name not in _OWN:
        return _foreign_end(name, ended)
    if ended.get("reason") == "OOMKilled":
        limit = ((spec.get("resources") or {}).get("limits") or {}).get("memory", "its limit")
        return Cause(
            Reason.OOM_KILLED,
            f"container {name} used more memory than {limit}; raise resources.limits.memory of the stage",
        )
    reason, message, field = shorten_termination(str(ended.get("message", "")))
    said = f": {message}" if message else ""
    where = f" (field {field})" if field else ""
    if code == ExitCode.BAD_CONFIGURATION or reason == TerminationReason.INVALID_CONFIGURATION:
        return _rejected(said, field, where)
    if reason == TerminationReason.FETCH_FAILED:
        return Cause(
            Reason.FETCH_FAILED,
            f"the checkpoint cannot be fetched{said}; check the network to its source, and the space in the cache",
        )
    if code == ExitCode.ENGINE_DEAD or reason == TerminationReason.ENGINE_DEAD:
        return Cause(Reason.ENGINE_DEAD, f"the engine died{said}; kubectl logs --previous shows why")
    if reason == TerminationReason.STEP_TIMEOUT:
        return Cause(Reason.ENGINE_DEAD, f"the engine hung and was restarted{said}; kubectl logs --previous shows why")
    if not reason and not message and code in _STOPPED_FROM_OUTSIDE:
        return Cause(
            Reason.PROBE_FAILING,
            f"kubelet stopped container {name}: its startup or liveness probe failed; see kubectl logs --previous",
        )
    return Cause(
        Reason.CRASH_LOOP_BACK_OFF,
        f"container {name} ends with exit code {code}{said}{where}; see kubectl logs --previous",
    )


def _foreign_end(name: str, ended: Mapping[str, Any]) -> Cause:
    """Returns the cause of a container that is not the operator's: its exit codes and messages have other meanings."""
    message = " ".join(str(ended.get("message", "")).split())[:_MAX_FOREIGN_DETAIL]
    said = f": {message}" if message else ""
    memory = ended.get("reason") == "OOMKilled"
    how = "used more memory than its limit" if memory else f"ends with exit code {int(ended.get('exitCode', 0))}{said}"
    return Cause(
        Reason.OOM_KILLED if memory else Reason.CRASH_LOOP_BACK_OFF,
        f"container {_whose(name)} {how}; see kubectl logs POD -c {name} --previous; {_CORRECT_FOREIGN}",
    )


def _rejected(said: str, field: str, where: str) -> Cause:
    if field.startswith("model.token"):
        return Cause(
            Reason.TOKEN_REJECTED,
            f"the model's source refuses access{said}; in spec.model.tokenSecretRef, or that of the stage's own model, "
            "give credentials that may read the model",
        )
    if field.startswith("model"):
        return Cause(
            Reason.MODEL_NOT_FOUND,
            f"the model cannot be used{said}{where}; correct spec.model, or the stage's own model, or the component",
        )
    if field.startswith("listen.tls"):
        return Cause(
            Reason.CERTIFICATE_REJECTED,
            f"the entry's certificate cannot be used{said}; create or correct the Secret that spec.entry.tls names; "
            "the pod reads it at its next start",
        )
    return Cause(
        Reason.CONFIG_REJECTED, f"the stage server refuses its configuration{said}{where}; correct it in the spec"
    )


def _short(text: str) -> str:
    return " ".join(text.split())[:_MAX_DETAIL]
