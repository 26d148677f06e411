"""Pods come and go under load while callers choose among them; as live_scaling.py."""

from __future__ import annotations

import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import pytest
from prometheus_client.parser import text_string_to_metric_families

from omni_proto.pod_contract import METRICS_PORT, StageMetric
from support.controlplane.control_plane import ControlPlane
from support.controlplane.keda import Keda
from support.controlplane.operators import OperatorProcess
from support.controlplane.paced_pods import Load, paced_pipeline, run_gateway
from support.controlplane.pipelines import condition_of, wait_condition, wait_settled
from support.controlplane.pod_network import Kubelet
from support.controlplane.server.api import Api, eventually
from support.peers.prometheus import PrometheusProcess
from support.processes.polling import PATIENCE_S
from support.stages.fast_table import write_fast_table

pytestmark = pytest.mark.controlplane

CALLS = 5000
MOST = 4
"""Pods of a stage, at most."""
SCALED = ("thinker", "talker")
"""The entry, which the gateway calls, and a stage that a stage calls."""


def answered(address: str) -> float | None:
    """Returns the time, in seconds of a monotonic clock, if a pod says that it has ended a call."""
    try:
        with urllib.request.urlopen(f"http://{address}:{METRICS_PORT}/metrics", timeout=5) as page:
            text = page.read().decode()
    except OSError:
        return None
    at, families = time.monotonic(), text_string_to_metric_families(text)
    calls = sum(one.value for family in families for one in family.samples if one.name == StageMetric.REQUESTS)
    return at if calls else None


def test_no_call_fails_while_replicas_go_and_come(
    control_plane: ControlPlane, api: Api, make_operator: Callable[..., OperatorProcess], tmp_path: Path
) -> None:
    table = write_fast_table(tmp_path / "table", replyTokens=[4, 4])
    waits: dict[str, float] = {}
    with Kubelet(api, tmp_path) as kubelet, make_operator(), run_gateway(control_plane, api, tmp_path) as client:
        api.apply(paced_pipeline(table, {"by": "External"}))
        wait_settled(api, timeout_s=2 * PATIENCE_S)

        def has(number: int) -> bool:
            """Returns whether all stages have that many pods, and each has answered; notes when new ones did."""
            pods = [kubelet.ready(stage) for stage in SCALED]
            new = {address: since for one in pods for address, since in one.items() if address not in waits}
            with ThreadPoolExecutor(2 * MOST) as pool:
                for address, at in zip(new, pool.map(answered, new), strict=True):
                    if at is not None:
                        waits[address] = at - new[address]
            return all(len(one) == number and one.keys() <= waits.keys() for one in pods) and all(
                kubelet.count(stage) == number for stage in SCALED
            )

        def scale(number: int) -> None:
            for stage in SCALED:
                api.patch("OmniStage", f"omni-{stage}", {"spec": {"replicas": number}})
            eventually(lambda: has(number), timeout_s=3 * PATIENCE_S, why=f"{number} pods serve")

        with Load(client, 6) as load:
            load.active = 6
            scale(1)
            old = set(waits)  # these were there before the load
            scale(MOST)
            began, before, changes = time.monotonic(), load.done, 0
            while load.done < before + CALLS:
                scale(1)
                scale(MOST)
                changes += 1
            seconds = time.monotonic() - began
        new = [wait for address, wait in waits.items() if address not in old]
        sys.stdout.write(
            f"\n{load.done - before} calls in {seconds:.0f} s, {len(load.wrong)} failed, {MOST} -> 1 -> {MOST} pods "
            f"{changes} times; {len(new)} new pods ended their first call {median(new):.1f} s after they were ready, "
            f"at most {max(new):.1f} s\n"
        )
        assert load.wrong == []
        assert kubelet.failures == []


def test_a_quota_stops_the_growth_and_the_condition_says_so(
    control_plane: ControlPlane, api: Api, make_operator: Callable[..., OperatorProcess], tmp_path: Path
) -> None:
    table = write_fast_table(tmp_path / "table", replyTokens=[40, 40], stepMs={"1": 40.0})
    pipeline = paced_pipeline(table, {"minReplicas": 1, "maxReplicas": 9}, engineArgs={"maxNumSeqs": 4})
    with Kubelet(api, tmp_path) as kubelet, make_operator(), run_gateway(control_plane, api, tmp_path) as client:
        # One more pod than the pipeline needs without load.
        metadata, spec = {"name": "pods"}, {"hard": {"pods": "4"}}
        api.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec})
        api.apply(pipeline)
        wait_settled(api, timeout_s=2 * PATIENCE_S)
        with Load(client, 8) as load:
            load.active = 8
            reason = "ScalingNeedsCapacity"
            said = wait_condition(api, "Scaling", status="False", reason=reason, timeout_s=2 * PATIENCE_S)["message"]
            assert "stage thinker" in said
            assert "ResourceQuota pods has no capacity" in said
            assert wait_condition(api, "Ready", status="True", timeout_s=PATIENCE_S)
            api.delete("ResourceQuota", "pods")
            eventually(lambda: kubelet.count("thinker") >= 3, timeout_s=3 * PATIENCE_S, why="there is room")
            wait_condition(api, "Scaling", status="True", timeout_s=3 * PATIENCE_S)
        sys.stdout.write(f"\n{said}\n{load.done} calls, {len(load.wrong)} failed, pods at most {kubelet.peak}\n")
        assert {kubelet.peak[stage] for stage in ("talker", "decoder")} == {1}
        assert load.wrong == []
        assert kubelet.failures == []


def test_keda_follows_the_operators_answer(
    control_plane: ControlPlane, api: Api, make_operator: Callable[..., OperatorProcess], tmp_path: Path
) -> None:
    """A ScaledObject on the exported number of pods that the load needs, as docs/scaling.md shows it."""
    table = write_fast_table(tmp_path / "table", replyTokens=[40, 40], stepMs={"1": 40.0})
    pipeline = paced_pipeline(table, {"by": "External"}, engineArgs={"maxNumSeqs": 4})
    labels = f'pipeline_namespace="{api.namespace}", pipeline="omni", stage="thinker"'

    def pods(stage: str) -> int:
        return int(api.get("OmniStage", f"omni-{stage}")["spec"]["replicas"])

    with Kubelet(api, tmp_path) as kubelet, make_operator() as operator:
        targets = [{"targets": [f"127.0.0.1:{operator.port('metrics')}"]}]
        config = {"job_name": "operator", "static_configs": targets}
        with PrometheusProcess(tmp_path, [config]) as prometheus, Keda(control_plane, api.namespace, tmp_path) as keda:
            api.apply(pipeline)
            wait_settled(api, timeout_s=2 * PATIENCE_S)
            trigger = {
                "serverAddress": prometheus.url,
                "query": f"max(omni_operator_stage_desired_replicas{{{labels}}})",
                "threshold": "1",
            }
            down = {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 15}}}
            spec = {
                "scaleTargetRef": {
                    "apiVersion": "omnipipeline.io/v1alpha1",
                    "kind": "OmniStage",
                    "name": "omni-thinker",
                },
                "pollingInterval": 5,
                "minReplicaCount": 1,
                "maxReplicaCount": 5,
                "advanced": {"horizontalPodAutoscalerConfig": down},
                "triggers": [{"type": "prometheus", "metadata": trigger}],
            }
            api.apply(
                {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "omni"}, "spec": spec}
            )
            with run_gateway(control_plane, api, tmp_path) as client, Load(client, 8) as load:
                load.active = 2
                eventually(
                    lambda: condition_of(api.get("ScaledObject", "omni"), "Ready").get("status") == "True",
                    timeout_s=PATIENCE_S,
                    why="KEDA accepts the scale target",
                )
                load.active = 8
                eventually(lambda: kubelet.count("thinker") >= 3, timeout_s=2 * PATIENCE_S, why="KEDA adds pods")
                grown = pods("thinker")
                load.active = 1
                eventually(lambda: kubelet.count("thinker") == 1, timeout_s=3 * PATIENCE_S, why="KEDA removes them")
            keda.require_running()
        sys.stdout.write(f"\nKEDA: thinker 1 -> {grown} -> 1, {load.done} calls, {len(load.wrong)} failed\n")
        assert [pods(stage) for stage in ("thinker", "talker", "decoder")] == [1, 1, 1]
        assert load.wrong == []
        assert kubelet.failures == []
