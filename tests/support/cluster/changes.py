"""Changes of a pipeline under load: `tests/cluster` makes each once, `make soak-cluster` ten times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from support.cluster.client_pod import TARGET, ClientPod, Load
from support.cluster.cluster import Cluster
from support.cluster.node.images import STAGE_IMAGE
from support.controlplane.pipelines import serving_revision, stage_of, wait_settled
from support.controlplane.server.api import Api, Manifest, eventually

NAME = "tiny-omni"
STAGES = ("thinker", "talker", "token2wav")
OTHER_IMAGE = f"{STAGE_IMAGE}-other"
TRAFFIC_WITHIN_S = 90
SETTLED_WITHIN_S = 600
_BEFORE, _AFTER = 1, 4
"""Answers to each caller before a change and after it."""


@dataclass
class Outcome:
    """How long a change took, and how requests fared from just before it until just after it."""

    seconds: float = 0.0
    """Seconds from the edit until the pipeline was Ready and not Progressing."""
    traffic_s: float | None = None
    """Seconds after that until each replica had answered a call. None unless the change added replicas."""
    answered: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    longest_s: float = 0.0
    """How long the slowest answered call took, in seconds."""


class Changes:
    """Changes the sample pipeline under load. A change raises AssertionError if its result is not the expected one."""

    def __init__(
        self, cluster: Cluster, api: Api, client: ClientPod, make_load: Callable[[int], Load] | None = None
    ) -> None:
        """`make_load` makes the load for a number of concurrent callers. Default: our own client calls the pipeline."""
        self._cluster = cluster
        self._api = api
        self._client = client
        self._make_load = make_load or (lambda streams: Load(client, TARGET, streams=streams))

    def roll(self, stage: str) -> Outcome:
        """Replaces the pods of one stage within its revision."""
        before, revision = self._uids(stage), serving_revision(self._api, NAME)
        with self._load() as outcome:
            self._edit(stage, podAnnotations={"example.com/edited": str(time.time_ns())})
            outcome.seconds = self._settle()
        _expect(serving_revision(self._api, NAME) == revision, "the revision stays")
        _expect(not self._uids(stage) & before, "every pod is a new one")
        return outcome

    def switch_revision(self) -> Outcome:
        """Switches the pipeline to another revision of all stages, which has the same image under another name."""
        self._cluster.containerd.ctr("images", "tag", "--force", STAGE_IMAGE, OTHER_IMAGE)
        revision = serving_revision(self._api, NAME)
        pipeline = self._api.get("OmniPipeline", NAME)
        other = pipeline["spec"].get("defaults", {}).get("image") == OTHER_IMAGE
        with self._load() as outcome:
            pipeline["spec"]["defaults"] = {"image": STAGE_IMAGE if other else OTHER_IMAGE}
            self._api.replace_spec(pipeline)
            outcome.seconds = self._settle()
        _expect(serving_revision(self._api, NAME) != revision, "another revision serves")
        return outcome

    def scale(self, stage: str, replicas: int) -> Outcome:
        """Scales a stage from one replica to `replicas`, waits until each has answered a call, and scales back."""
        with self._load(streams=4) as outcome:
            self._edit(stage, replicas=replicas)
            outcome.seconds = self._settle()
            began = time.monotonic()
            _expect(len(self._pods(stage)) == replicas, f"{replicas} pods")
            eventually(
                lambda: all(self._has_answered(pod) for pod in self._pods(stage)),
                timeout_s=TRAFFIC_WITHIN_S,
                every_s=2,
                why="every replica answers calls",
            )
            outcome.traffic_s = time.monotonic() - began
            self._edit(stage, replicas=1)
            self._settle()
            eventually(lambda: len(self._pods(stage)) == 1, timeout_s=120, why="one pod is left")
        return outcome

    @contextmanager
    def _load(self, *, streams: int = 2) -> Iterator[Outcome]:
        """Runs load during the `with` block. The outcome is complete after the block."""
        outcome = Outcome()
        with self._make_load(streams) as load:
            load.wait_answered(_BEFORE * streams)
            yield outcome
            load.wait_answered(_AFTER * streams)
        outcome.answered, outcome.failures, outcome.longest_s = load.answered, load.failures, load.longest_s

    def _edit(self, stage: str, **fields: object) -> None:
        pipeline = self._api.get("OmniPipeline", NAME)
        stage_of(pipeline, stage).update(fields)
        self._api.replace_spec(pipeline)

    def _settle(self) -> float:
        """Waits until the pipeline serves its present spec. Returns how many seconds that took."""
        began = time.monotonic()
        wait_settled(self._api, NAME, timeout_s=SETTLED_WITHIN_S)
        return time.monotonic() - began

    def _pods(self, stage: str) -> list[Manifest]:
        """Returns the pods of a stage that are not being deleted."""
        pods = self._api.list("Pod", f"omnipipeline.io/pipeline={NAME},omnipipeline.io/stage={stage}")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def _uids(self, stage: str) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self._pods(stage)}

    def _has_answered(self, pod: Manifest) -> bool:
        """Returns whether the pod's metrics count any answered call."""
        address = f"http://{pod['status']['podIP']}:9090/metrics"
        text = self._client.run(
            "python", "-c", f"from urllib.request import urlopen; print(urlopen({address!r}).read().decode())"
        )
        lines = [line for line in text.splitlines() if line.startswith("omni_stage_requests_total")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if 'code="OK"' in line) > 0


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(f"expected: {what}")
