"""Operator, dashboards, alerts and runbooks understand what a stage server writes; probes ask for what it serves."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.observability.__main__ import DASHBOARDS
from tools.observability.alerts import GROUPS
from tools.observability.grafana import render_dashboard
from tools.observability.reference import collect_stage_metrics, sample_name
from tools.observability.rules.rule import render_rules

from omni_cli.commands.render import render_children
from omni_operator.desired.build_settings import BuildSettings
from omni_operator.desired.deployment import build_probes
from omni_operator.reasons import Reason
from omni_operator.state.container_causes import find_container_cause
from omni_proto.pipeline.read.offline import load_checked
from omni_proto.pod_contract import (
    GRPC_PORT,
    HEALTH_PORT,
    LIVENESS,
    MAX_TERMINATION_BYTES,
    METRICS_PORT,
    METRICS_PORT_NAME,
    PIPELINE_LABEL,
    READINESS,
    STAGE_LABEL,
    ExitCode,
    StageMetric,
    Termination,
    TerminationReason,
    parse_termination,
)
from omni_proto.stage_config import Listen
from omni_stage.service.errors import DOMAIN as STAGE_DOMAIN

ROOT = Path(__file__).parents[3]
SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))
KUBELET_READS = 4096

CAUSES = {
    TerminationReason.INVALID_CONFIGURATION: Reason.CONFIG_REJECTED,
    TerminationReason.START_FAILED: Reason.CRASH_LOOP_BACK_OFF,
    TerminationReason.ENGINE_DEAD: Reason.ENGINE_DEAD,
    TerminationReason.STEP_TIMEOUT: Reason.ENGINE_DEAD,
    TerminationReason.FETCH_FAILED: Reason.FETCH_FAILED,
}


@pytest.mark.parametrize("message", ["", "weights are missing", "ä" * 2000, "\U0001f600" * 1000, '"\\\n'])
def test_a_message_comes_back(message: str) -> None:
    """An encoded termination message fits kubelet's limit, and only its `message` field may be shortened."""
    left = Termination(TerminationReason.START_FAILED, message, "model.path")
    text = left.encode()
    assert len(text.encode()) < KUBELET_READS
    found = parse_termination(text)
    assert found is not None
    assert (found.reason, found.field) == ("StartFailed", "model.path")
    assert message.startswith(found.message)
    assert len(found.message) == len(message) or len(found.message.encode()) > MAX_TERMINATION_BYTES - 4


@pytest.mark.parametrize("text", ["", "panic: no space", "[" * 100_000, '{"reason": "Engine'])
def test_a_foreign_message_is_none(text: str) -> None:
    """Text that is not JSON is parsed as None, because no stage server wrote it."""
    assert parse_termination(text) is None


@pytest.mark.parametrize("text", ["[1]", "7", "null", '"text"'])
def test_json_of_another_form_says_nothing(text: str) -> None:
    """JSON that is not an object is parsed as an empty termination message."""
    assert parse_termination(text) == Termination("")


def test_values_that_are_no_text_are_none() -> None:
    assert parse_termination('{"reason": 7, "message": {"a": 1}, "more": "x"}') == Termination("", "", "")


@pytest.mark.parametrize("reason", list(TerminationReason))
def test_the_operator_knows_every_reason(reason: TerminationReason) -> None:
    ended = {"exitCode": int(ExitCode.FAILED), "message": Termination(reason, "said so").encode()}
    status = {"name": "stage", "state": {"terminated": ended}}
    cause = find_container_cause({"name": "stage"}, status, init=False)
    assert cause is not None
    assert cause.reason == CAUSES[reason]
    assert "said so" in cause.message


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ExitCode.BAD_CONFIGURATION, Reason.CONFIG_REJECTED),
        (ExitCode.ENGINE_DEAD, Reason.ENGINE_DEAD),
        (ExitCode.FAILED, Reason.CRASH_LOOP_BACK_OFF),
        (ExitCode.ABORTED, Reason.PROBE_FAILING),
    ],
)
def test_the_operator_knows_every_exit_code(code: ExitCode, reason: Reason) -> None:
    """If a full volume or a signal has prevented a termination message, the exit code tells the operator the reason."""
    status = {"name": "stage", "state": {"terminated": {"exitCode": int(code)}}}
    cause = find_container_cause({"name": "stage"}, status, init=False)
    assert cause is not None
    assert cause.reason == reason


def test_probes_ask_for_the_health_that_stages_publish() -> None:
    probes = build_probes(0)
    asked = {name: probe["grpc"]["service"] for name, probe in probes.items()}
    assert asked == {"startupProbe": READINESS, "readinessProbe": READINESS, "livenessProbe": LIVENESS}
    assert {probe["grpc"]["port"] for probe in probes.values()} == {HEALTH_PORT}


def test_stages_listen_where_pods_say() -> None:
    listen = Listen()
    assert (listen.grpc_port, listen.health_port, listen.metrics_port) == (GRPC_PORT, HEALTH_PORT, METRICS_PORT)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_monitors_and_policies_name_ports_that_pods_have(sample: Path) -> None:
    documents = render_children(
        load_checked(sample), "default", BuildSettings(default_image="stage:1", pod_monitors=True)
    )
    ports = {
        port["name"]: port["containerPort"]
        for item in documents
        if item["kind"] == "Deployment"
        for port in item["spec"]["template"]["spec"]["containers"][0]["ports"]
    }
    assert ports == {"grpc": GRPC_PORT, "health": HEALTH_PORT, METRICS_PORT_NAME: METRICS_PORT}
    for item in documents:
        if item["kind"] == "PodMonitor":
            assert {end["port"] for end in item["spec"]["podMetricsEndpoints"]} == {METRICS_PORT_NAME}
        if item["kind"] == "Deployment":
            assert {PIPELINE_LABEL, STAGE_LABEL} <= set(item["spec"]["template"]["metadata"]["labels"])


def test_errors_carry_the_same_domain() -> None:
    assert f"{STAGE_DOMAIN}/pipeline" == PIPELINE_LABEL


def test_the_form_is_json() -> None:
    assert json.loads(Termination("R").encode()) == {"reason": "R", "message": "", "field": ""}


def metrics_in(text: str) -> set[str]:
    """Returns the names of stage metrics in a text. A series of a histogram is returned as the histogram's name."""
    names = re.findall(r"\bomni_(?:stage|pipeline)_[a-z_]*[a-z]\b", text)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def test_stages_register_the_metrics_that_are_named() -> None:
    assert {sample_name(family) for family in collect_stage_metrics()} == {str(metric) for metric in StageMetric}


READERS = {
    "dashboards": lambda: "".join(render_dashboard(page) for page in DASHBOARDS.values()),
    "alerts": lambda: render_rules(GROUPS, "https://example.com"),
    "chart": lambda: "".join(
        path.read_text() for path in (ROOT / "helm" / "omnipipeline" / "files").rglob("*") if path.is_file()
    ),
    "runbooks": lambda: "".join(path.read_text() for path in (ROOT / "docs" / "runbooks").glob("*.md")),
    "metrics page": lambda: (ROOT / "docs" / "reference" / "metrics.md").read_text(),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_readers_ask_for_metrics_that_stages_have(reader: Callable[[], str]) -> None:
    found = metrics_in(reader())
    assert found
    assert found <= set(StageMetric)
