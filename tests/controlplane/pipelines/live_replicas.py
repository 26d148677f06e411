"""Pods come and go under load while callers choose among them; as live_scaling.py."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, Self

import pytest
from prometheus_client.parser import text_string_to_metric_families

from omni_proto.client import OmniClient, OmniRequestError
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


MOMENTS = ("ready", "named", "found", "connected", "chosen", "answered")


class Caller:
    """Calls a pipeline's own name all the time, with two calls at once, and notes when it meets each pod: when it finds
    the address, has a connection to a pod that serves, chooses it for a call, and gets its answer. A context manager.
    """

    def __init__(self, target: str) -> None:
        self.moments: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """Of each address, in seconds of a monotonic clock."""
        self.wrong: list[str] = []
        self._numbers = itertools.count()
        self._client, self._ended = OmniClient(target), threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(2)]

    def __enter__(self) -> Self:
        pool: Any = self._client._pool
        update, set_connected, take, give_back = pool.update, pool.set_connected, pool.take, pool.give_back

        def found(addresses: Collection[str]) -> Any:
            for address in addresses:
                self._note("found", address)
            return update(addresses)

        def connected(address: str, is_connected: bool) -> None:
            set_connected(address, is_connected)
            if is_connected:
                self._note("connected", address)

        def chosen(*arguments: Any) -> Any:
            loan = take(*arguments)
            self._note("chosen", loan.pod)
            return loan

        def answered(loan: Any) -> Any:
            if loan.complete:
                self._note("answered", loan.pod)
            return give_back(loan)

        pool.update, pool.set_connected, pool.take, pool.give_back = found, connected, chosen, answered
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def _note(self, moment: str, pod: str) -> None:
        self.moments[pod.removeprefix("ipv4:").rpartition(":")[0]].setdefault(moment, time.monotonic())

    def _call(self) -> None:
        while not self._ended.is_set():
            try:
                self._client.run(text=f"How are you, {next(self._numbers)}?", timeout=PATIENCE_S)
            except OmniRequestError as error:
                self.wrong.append(str(error))


def print_parts(of_pods: Iterable[Mapping[str, float]]) -> None:
    """Prints how long pods took from each moment to the next."""
    whole = [pod for pod in of_pods if pod.keys() >= set(MOMENTS)]
    for before, after in (*itertools.pairwise(MOMENTS), ("ready", "chosen")):
        took = [pod[after] - pod[before] for pod in whole]
        each = f"median {median(took):.2f} s, at most {max(took):.2f} s"
        sys.stdout.write(f"from {before} to {after}: {each} of {len(took)} pods\n")


def test_no_call_fails_while_replicas_go_and_come(
    control_plane: ControlPlane, api: Api, make_operator: Callable[..., OperatorProcess], tmp_path: Path
) -> None:
    table = write_fast_table(tmp_path / "table", replyTokens=[4, 4])
    ready: dict[str, float] = {}
    waits: dict[str, float] = {}
    with Kubelet(api, tmp_path) as kubelet, make_operator(), run_gateway(control_plane, api, tmp_path) as client:
        api.apply(paced_pipeline(table, {"by": "External"}))
        wait_settled(api, timeout_s=2 * PATIENCE_S)

        def has(number: int) -> bool:
            """Returns whether all stages have that many pods, and each has answered; notes when new ones did."""
            pods = [kubelet.ready(stage) for stage in SCALED]
            new = {address: since for one in pods for address, since in one.items() if address not in waits}
            ready.update(new)
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

        name = f"omni-headless.{api.namespace}.svc.cluster.local:50051"
        with Load(client, 6) as load, Caller(name) as caller:
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
        moments = caller.moments
        print_parts(
            {"ready": since, "named": kubelet.named[address], **moments[address]}
            for address, since in ready.items()
            if address not in old
        )
        assert load.wrong + caller.wrong == []
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
