"""The settings for Argo CD and Flux in docs/operations.md, applied to conditions as the operator writes them.

Flux's expressions are evaluated in the order of its controller; Argo CD's script is run by an interpreter of the same
version of Lua.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import cel
import pytest
import yaml
from lupa.lua51 import LuaRuntime

from omni_operator.reasons import Reason
from omni_operator.status.conditions import ALWAYS_WRITTEN, DEGRADED, PROGRESSING, READY, Verdict, set_conditions
from omni_proto.pipeline import API_VERSION, KIND
from support.docs.doc_examples import ROOT, blocks_of

PAGE = ROOT / "docs" / "operations.md"
ARGO_CD, FLUX = (yaml.safe_load(block.text) for block in blocks_of(PAGE) if block.language == "yaml")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def build_status(ready: Reason, progressing: Reason, degraded: Reason, holds: str) -> dict[str, Any]:
    """Returns a status with these reasons; holds has the initials of the conditions that are True."""
    reasons = {READY: ready, PROGRESSING: progressing, DEGRADED: degraded}
    verdicts = {kind: Verdict(kind[0] in holds, reason, "") for kind, reason in reasons.items()}
    return {"observedGeneration": 2, "conditions": set_conditions((), verdicts, 2, NOW)}


FAILING = build_status(Reason.ALL_STAGES_READY, Reason.ROLLING_OUT, Reason.IMAGE_PULL_BACK_OFF, "RPD")
ROLLOUTS = (
    (build_status(Reason.STAGES_NOT_READY, Reason.STARTING, Reason.AS_EXPECTED, "P"), "in progress", "Progressing"),
    (build_status(Reason.ALL_STAGES_READY, Reason.ROLLING_OUT, Reason.AS_EXPECTED, "RP"), "in progress", "Progressing"),
    (build_status(Reason.ALL_STAGES_READY, Reason.ROLLOUT_COMPLETE, Reason.AS_EXPECTED, "R"), "current", "Healthy"),
    (build_status(Reason.SUSPENDED, Reason.SUSPENDED, Reason.AS_EXPECTED, ""), "current", "Suspended"),
    (FAILING, "failed", "Degraded"),
    (build_status(Reason.INVALID_SPEC, Reason.INVALID_SPEC, Reason.INVALID_SPEC, "D"), "failed", "Degraded"),
)
"""Statuses, with what Flux and Argo CD should make of them."""


@pytest.mark.parametrize(("status", "verdict"), [case[:2] for case in ROLLOUTS])
def test_flux_waits_for_the_rollout(status: dict[str, Any], verdict: str) -> None:
    (checks,) = FLUX["spec"]["healthCheckExprs"]
    assert (checks["apiVersion"], checks["kind"]) == (API_VERSION, KIND)
    found = {name: cel.compile(checks[name]).execute(cel.Context({"status": status})) for name in ("failed", "current")}
    assert verdict == ("failed" if found["failed"] else "current" if found["current"] else "in progress")


def run_health_script(resource: dict[str, Any]) -> dict[str, str]:
    """Returns what Argo CD's script says about a resource. As there, the global obj is the resource."""
    lua = LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(resource, recursive=True)
    (script,) = ARGO_CD["data"].values()
    return dict(lua.execute(script))


@pytest.mark.parametrize(("status", "health"), [(status, health) for status, _, health in ROLLOUTS])
def test_argo_cd_shows_the_rollout(status: dict[str, Any], health: str) -> None:
    assert run_health_script({"metadata": {"generation": 2}, "status": status})["status"] == health


@pytest.mark.parametrize("status", [None, {"observedGeneration": 0}, {**ROLLOUTS[2][0], "observedGeneration": 1}])
def test_argo_cd_waits_until_the_operator_has_seen_an_edit(status: dict[str, Any] | None) -> None:
    resource = {"metadata": {"generation": 2}} | ({"status": status} if status else {})
    assert run_health_script(resource) == {
        "status": "Progressing",
        "message": "the operator has not seen the change yet",
    }


def test_argo_cd_reads_conditions_that_exist() -> None:
    ((key, script),) = ARGO_CD["data"].items()
    assert key == f"resource.customizations.health.{API_VERSION.partition('/')[0]}_{KIND}"
    assert set(re.findall(r"found\.([A-Z]\w+)", script)) == set(ALWAYS_WRITTEN)
    assert re.findall(r'reason == "(\w+)"', script) == [Reason.SUSPENDED]
