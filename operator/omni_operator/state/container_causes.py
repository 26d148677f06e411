"""Finds out why a container does not run, from its status as written by kubelet.

A cause must stay the same while the problem is the same. While a container keeps crashing, kubelet cycles through
waiting, running and terminated, and counts restarts. So messages contain only what does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from omni_kube.objects import Manifest
from omni_operator.reasons import Reason
from omni_proto.pod_contract import ExitCode, TerminationReason, parse_termination

_STOPPED_FROM_OUTSIDE: Final = frozenset({ExitCode.DRAINED, 137, ExitCode.ABORTED})
"""Exit codes after a signal from kubelet: drained after SIGTERM, killed, and aborted. A second SIGTERM aborts a drain;
the first SIGTERM aborts a download."""
_PULL_FAILURES: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError"}
)
_START_FAILURES: Final = frozenset({"CreateContainerError", "RunContainerError", "StartError", "PostStartHookError"})
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
    image = spec.get("image", "")
    if reason == "InvalidImageName":
        return Cause(Reason.INVALID_IMAGE_NAME, f"image {image!r} is not a valid image name; correct image in the spec")
    if reason in _PULL_FAILURES:
        return Cause(
            Reason.IMAGE_PULL_BACK_OFF,
            f"image {image} cannot be pulled{_pull_detail(message)}; check its name and tag, imagePullSecrets, and "
            "whether nodes reach the registry",
        )
    if reason == "CreateContainerConfigError":
        return Cause(
            Reason.MISSING_REFERENCE,
            f"a container cannot be configured: {_short(message)}; create what is missing, or correct the reference",
        )
    if reason in _START_FAILURES:
        return Cause(
            Reason.CONTAINER_NOT_STARTED,
            f"container {spec.get('name', '')} cannot be started ({reason}); see kubectl describe pod",
        )
    return None


def _pull_detail(message: str) -> str:
    """Returns in a few words, in parentheses, why the pull failed, if the message shows it.

    Each container runtime words the message differently.
    """
    text = message.lower()
    for word, detail in (
        ("not found", "no such image"),
        ("manifest unknown", "no such image"),
        ("unauthorized", "access refused"),
        ("denied", "access refused"),
        ("forbidden", "access refused"),
        ("no such host", "the registry's name is unknown"),
        ("connection refused", "the registry does not answer"),
        ("timeout", "the registry does not answer"),
    ):
        if word in text:
            return f" ({detail})"
    return ""


def _ended_cause(spec: Manifest, ended: Mapping[str, Any]) -> Cause:
    name, code = spec.get("name", ""), int(ended.get("exitCode", 0))
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
            f"the checkpoint cannot be fetched{said}; check the network to the hub, and the space in the cache",
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


def _rejected(said: str, field: str, where: str) -> Cause:
    if field.startswith("model.token"):
        return Cause(
            Reason.TOKEN_REJECTED,
            f"the model hub refuses access{said}; in spec.model.tokenSecretRef, give a token that may read the model",
        )
    if field.startswith("model"):
        return Cause(
            Reason.MODEL_NOT_FOUND, f"the model cannot be used{said}{where}; correct spec.model or the component"
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
