"""Which OmniPipelines the gateway lists, and to which it sends requests."""

from __future__ import annotations

from typing import Any

import pytest

from omni_gateway.cluster.watch import REFUSED, read_pipeline, read_pipelines, slim_manifest
from omni_gateway.settings import GatewaySettings
from omni_operator.reasons import Reason


def manifest(*conditions: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": "omni", "namespace": "models", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "status": {"url": "grpc://omni.models.svc:50051", "conditions": list(conditions)}}


@pytest.mark.parametrize(
    ("status", "reason", "ready", "accepts"),
    [
        ("True", Reason.ALL_STAGES_READY, True, True),
        ("False", Reason.REPLICAS_MISSING, False, True),
        ("False", Reason.STAGES_NOT_READY, False, True),
        ("False", Reason.SCALED_TO_ZERO, False, True),
        ("False", Reason.SUSPENDED, False, False),
        ("False", Reason.CHILD_CONFLICT, False, False),
    ],
)
def test_a_pipeline_without_a_stage_still_gets_requests(
    status: str, reason: Reason, ready: bool, accepts: bool
) -> None:
    """Ready is False if any stage has no pod. Requests that do not need this stage are served, so all are sent."""
    found = manifest({"type": "Ready", "status": status, "reason": reason})
    read = read_pipeline(slim_manifest(found), GatewaySettings(), {})
    assert read is not None
    assert (read.ready, read.accepts) == (ready, accepts)


def test_a_pipeline_that_the_operator_has_not_judged_gets_no_requests() -> None:
    read = read_pipeline(manifest(), GatewaySettings(), {})
    assert read is not None
    assert (read.ready, read.accepts) == (False, False)


def test_the_reasons_are_those_of_the_operator() -> None:
    assert set(REFUSED) == {Reason.SUSPENDED.value, Reason.CHILD_CONFLICT.value}


def named(namespace: str, name: str, *aliases: str, created: str, names: list[dict[str, str]]) -> dict[str, Any]:
    found = manifest({"type": "Ready", "status": "True", "reason": Reason.ALL_STAGES_READY})
    found["metadata"] = {"name": name, "namespace": namespace, "creationTimestamp": created}
    found["spec"] = {"aliases": {"models": list(aliases)}}
    found["status"] |= {"url": f"grpc://{name}.{namespace}.svc:50051", "names": names}
    return slim_manifest(found)


def test_a_pipeline_gets_only_the_names_that_it_was_granted() -> None:
    since = "2026-01-02T00:00:00Z"
    pipelines = [
        named("a", "chat", "tts-1", created=since, names=[{"name": "chat", "since": since}, {"name": "tts-1"}]),
        named("b", "chat", created="2026-01-01T00:00:00Z", names=[{"name": "chat", "message": "taken"}]),
        named("b", "tts-1", created=since, names=[{"name": "tts-1", "since": since}]),
    ]
    read = read_pipelines(pipelines, GatewaySettings())
    assert [(one.id, one.aliases) for one in read] == [("chat", ()), ("b/chat", ()), ("tts-1", ())]
