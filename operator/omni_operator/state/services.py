"""Finds out whether a client can connect through one of the pipeline's Services."""

from __future__ import annotations

from collections.abc import Mapping

from omni_kube.objects import is_terminating, value_at
from omni_operator.names import stage_name, stage_selector
from omni_operator.state.observed import Observed


def find_service_problem(observed: Observed, name: str, selector: Mapping[str, str]) -> str:
    """Returns what is wrong with a Service that must have the selector; empty if it selects the right pods.

    It may have no ready endpoint even then: see has_endpoints.
    """
    service = observed.child("Service", name)
    if service is None:
        return f"Service {name} does not exist"
    if not observed.owns(service):
        return f"Service {name} is not the pipeline's"
    if is_terminating(service):
        return f"Service {name} is being deleted"
    selects = value_at(service, "spec", "selector", default={}) == selector
    return "" if selects else f"Service {name} does not select the pods that serve"


def has_endpoints(observed: Observed, name: str) -> bool:
    """Returns whether a Service leads to a ready pod."""
    return observed.endpoints.get(name, 0) > 0


def find_stage_problem(observed: Observed, stage: str, revision: str) -> str:
    """Returns what is wrong with the Service of a stage of a revision; empty if it selects the right pods."""
    name = stage_name(observed.name, stage, revision)
    return find_service_problem(observed, name, stage_selector(observed.name, stage, revision))


def is_reachable(observed: Observed, stage: str, revision: str) -> bool:
    """Returns whether a client can connect to a stage of a revision through its Service."""
    is_right = not find_stage_problem(observed, stage, revision)
    return is_right and has_endpoints(observed, stage_name(observed.name, stage, revision))
