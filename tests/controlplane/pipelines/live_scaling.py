"""An operator, a gateway and paced engines as processes, under load, on a real control plane; see pod_network.py.

Run by test_live_scaling.py. It prints what it measured; only what must hold on any machine is asserted.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest

from omni_proto.client import OmniClient
from omni_proto.rpc.status import read_status, status_of_call
from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess
from support.controlplane.paced_pods import ACTIVATOR, PLAIN, SPOKEN, STAGES, Load, ask, paced_pipeline, run_gateway
from support.controlplane.pipelines import condition_of, wait_condition, wait_settled
from support.controlplane.pod_network import Kubelet
from support.controlplane.server.api import Api, Manifest, eventually
from support.processes.polling import PATIENCE_S
from support.stages.fast_table import write_fast_table

pytestmark = pytest.mark.controlplane

GET_STAGE = "/omni_proto.stage.v1.StageService/GetStage"


def grant_endpoint_slices(api: Api) -> None:
    """Grants the operator what the chart does with gateway.wakesGrpcCallers."""
    group, one = "rbac.authorization.k8s.io", {"name": "endpointslices"}
    rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["create", "delete", "patch"]}
    account = {"kind": "ServiceAccount", "name": "omnipipeline-operator", "namespace": api.namespace}
    role = {"kind": "Role", "name": "endpointslices", "apiGroup": group}
    api.apply({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": one, "rules": [rule]})
    api.apply(
        {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": one, "subjects": [account], "roleRef": role}
    )


def find_activations(api: Api) -> list[str]:
    """Returns the names of the EndpointSlices that lead to the gateway."""
    return [name for one in api.list("EndpointSlice") if "-activator-" in (name := one["metadata"]["name"])]


def stream(client: httpx.Client, body: Manifest) -> tuple[str, int]:
    """Returns what is wrong with a stream, and how many comments it had."""
    comments, ended = 0, False
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        for line in response.iter_lines():
            comments += line.startswith(":")
            if '"error"' in line:
                return line, comments
            ended |= line == "data: [DONE]"
    return "" if ended else "no end", comments


def ask_eight(client: httpx.Client, folder: Path) -> tuple[float, int]:
    """Sends eight requests at once. Returns the seconds until all are answered, and the fewest comments of a stream."""
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        plain = [pool.submit(ask, client, SPOKEN if number % 2 else PLAIN) for number in range(6)]
        streams = [pool.submit(stream, client, PLAIN) for _ in range(2)]
        wrong = [said for one in plain if (said := one.result())]
        wrong += [one.result()[0] for one in streams if one.result()[0]]
    if wrong:
        for log in sorted(folder.glob("**/*log")):
            sys.stdout.write(f"\n--- {log.relative_to(folder)}\n{log.read_text(errors='replace')[-3000:]}")
    assert wrong == []
    return time.monotonic() - began, min(one.result()[1] for one in streams)


def is_asleep(api: Api) -> bool:
    return bool(condition_of(api.get("OmniPipeline", "omni"), "Ready").get("reason") == "Sleeping")


def test_to_zero_and_back(
    control_plane: ControlPlane, api: Api, make_operator: Callable[..., OperatorProcess], tmp_path: Path
) -> None:
    table = write_fast_table(tmp_path / "table", step_ms=30.0, replyTokens=[20, 20])
    pipeline = paced_pipeline(table, {"minReplicas": 0, "maxReplicas": 2, "idleSeconds": 15})
    grant_endpoint_slices(api)
    operator = make_operator("--activator", ACTIVATOR)
    with Kubelet(api, tmp_path) as kubelet, operator, run_gateway(control_plane, api, tmp_path) as client:
        api.apply(pipeline)
        wait_settled(api, timeout_s=2 * PATIENCE_S)
        assert ask(client, SPOKEN) == ""

        # A request in flight for longer than the idle time keeps it awake.
        with ThreadPoolExecutor(1) as pool:
            long = pool.submit(stream, client, {**PLAIN, "max_tokens": 1000, "min_tokens": 1000, "ignore_eos": True})
            while not long.done():
                assert not is_asleep(api)
                time.sleep(0.2)
            assert long.result()[0] == ""

        eventually(lambda: is_asleep(api) and not kubelet.count(), timeout_s=2 * PATIENCE_S, why="it sleeps")
        assert {api.get("OmniStage", f"omni-{stage}")["spec"]["replicas"] for stage in STAGES} == {0}
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["omni"]
        kubelet.starts.clear()
        asked = time.monotonic()
        total, comments = ask_eight(client, tmp_path)
        assert comments > 1
        slowest = max(seconds for _, _, seconds in kubelet.starts)
        first = min(began for _, began, _ in kubelet.starts) - asked
        ready = max(began + seconds for _, began, seconds in kubelet.starts) - asked
        answered, _ = ask_eight(client, tmp_path)
        sys.stdout.write(
            f"\nwoken by 8 requests: pods start after {first:.1f} s, all are ready after {ready:.1f} s, answered after "
            f"{total:.1f} s; slowest start {slowest:.1f} s; the same 8 awake {answered:.1f} s; "
            f"without their answers {(total - answered) / slowest:.2f} x the start\n"
        )
        assert sorted(stage for stage, _, _ in kubelet.starts) == sorted(STAGES)
        wait_condition(api, "Ready", status="True", reason="AllStagesReady")

        # A gRPC client that calls the pipeline's own Service wakes it too, and waits for it.
        eventually(lambda: is_asleep(api) and not kubelet.count(), timeout_s=2 * PATIENCE_S, why="it sleeps again")
        name = f"omni.{api.namespace}.svc.cluster.local:50051"
        eventually(lambda: ACTIVATOR.partition(":")[0] in Path("/etc/hosts").read_text(), timeout_s=PATIENCE_S)
        with grpc.insecure_channel(name) as channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(GET_STAGE)(b"", timeout=PATIENCE_S)
        told = read_status(status_of_call(caught.value))
        assert (told.code, told.reason, told.retry_after_s) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY", 1.0)
        with OmniClient(name) as grpc_client:
            assert grpc_client.run(text="How are you?", timeout=2 * PATIENCE_S).audio
        wait_condition(api, "Ready", status="True", reason="AllStagesReady")
        eventually(lambda: not find_activations(api), timeout_s=PATIENCE_S, why="the Service leads to the pods only")
        assert kubelet.failures == []


def test_four_times_the_load(
    control_plane: ControlPlane, api: Api, make_operator: Callable[..., OperatorProcess], tmp_path: Path
) -> None:
    table = write_fast_table(tmp_path / "table", step_ms=0.5, replyTokens=[40, 40], stepMs={"1": 40.0})
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 30}}
    pipeline = paced_pipeline(
        table, {"minReplicas": 1, "maxReplicas": 5, "behavior": behavior}, engineArgs={"maxNumSeqs": 4}
    )

    def sizes() -> dict[str, int]:
        return {stage: api.get("OmniStage", f"omni-{stage}")["spec"]["replicas"] for stage in STAGES}

    operator = make_operator()
    with Kubelet(api, tmp_path) as kubelet, run_gateway(control_plane, api, tmp_path) as client:
        operator.start()
        api.apply(pipeline)
        wait_settled(api, timeout_s=2 * PATIENCE_S)
        with Load(client, 8) as load:
            load.active = 2
            history = [sizes()]

            def watch(until: Callable[[dict[str, int]], bool], seconds: float) -> None:
                deadline = time.monotonic() + PATIENCE_S + seconds
                while not until(history[-1]) or seconds > 0:
                    assert time.monotonic() < deadline, history
                    time.sleep(0.5)
                    seconds -= 0.5
                    if (now := sizes()) != history[-1]:
                        history.append(now)

            watch(lambda now: True, 30)
            assert history == [dict.fromkeys(STAGES, 1)], history
            load.active = 8
            watch(lambda now: now["thinker"] >= 3, 0)
            name = f'{{pipeline="omni",pipeline_namespace="{api.namespace}",stage="thinker"}}'
            assert operator.metrics()[f"omni_operator_stage_desired_replicas{name}"] >= 3, "for other autoscalers"
            operator.kill()
            before = load.done
            eventually(lambda: load.done > before + 20, timeout_s=PATIENCE_S, why="calls go on without it")
            operator.start()
            watch(lambda now: True, 45)
            load.active = 2
            watch(lambda now: now["thinker"] == 1, 0)
            eventually(lambda: kubelet.count("thinker") == 1, timeout_s=PATIENCE_S, why="the others have drained")
        operator.stop()
        steps = [now["thinker"] for now in history]
        sys.stdout.write(
            f"\n{load.done} calls, {len(load.wrong)} failed; thinker {steps}, pods at most {kubelet.peak}\n"
        )
        assert load.wrong == []
        assert kubelet.failures == []
        assert {now[stage] for now in history for stage in STAGES[1:]} == {1}, "only the bottleneck grows"
        moves = [after - before for before, after in itertools.pairwise(steps) if after != before]
        turns = sum((one > 0) != (other > 0) for one, other in itertools.pairwise(moves))
        assert turns <= 1, steps
