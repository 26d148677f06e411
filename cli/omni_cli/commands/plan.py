"""`omnipipe plan`: how many pods of each stage a request rate needs, by a table of step times; nothing runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from omni_cli.commands.run import find_models
from omni_operator.scaling.decision import TARGET_SHARE
from omni_proto.pipeline import ModelPathError, OmniPipeline
from omni_proto.pipeline.compile import gpus_of
from omni_stage.errors import ConfigurationError
from omni_stage.models.sim.capacity import STAGES, CapacityPlan, ObjectiveUnreachableError, Promise, Work, plan_capacity
from omni_stage.models.sim.tables import BUILT_IN, Table, list_built_in, read_table

FIRST_AUDIO: Final = "first-audio"
_ROLES: Final = {**{name: name for name in STAGES}, "token2wav": "decoder", "code2wav": "decoder"}
_UNITS: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}
_DURATION: Final = re.compile(r"(?P<number>\d{1,9}(\.\d{1,9})?)(?P<unit>ms|s|m|)")


class PlanError(ValueError):
    """The plan cannot be made. str() says why."""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """What a plan was made of, and what it says."""

    table: Table
    work: Work
    promise: Promise
    capacity: CapacityPlan
    names: Mapping[str, str]
    """The pipeline's stages by their part: thinker, talker, decoder."""
    devices: Mapping[str, int]
    """GPUs of a pod, by part."""
    defaults: Mapping[str, float]
    """The operator's own targetRequests by part, for stages that set maxNumSeqs."""

    def to_json(self) -> dict[str, Any]:
        """Returns the plan for -o json and -o yaml."""
        return {
            "table": self.table.title,
            "firstAudioSeconds": round(self.capacity.first_audio_s, 4),
            "firstAudioAloneSeconds": round(self.capacity.alone_s, 4),
            "percentile": self.promise.percentile,
            "mostRequestsPerSecond": round(self.capacity.most_rate, 2),
            "stages": [
                {
                    "name": self.names[part],
                    "replicas": one.pods,
                    "gpus": one.pods * self.devices[part],
                    "requestsPerPod": round(one.requests, 2),
                    **({} if one.target_requests is None else {"targetRequests": _target(one.target_requests)}),
                }
                for part, one in self.capacity.stages.items()
            ],
        }

    def write(self) -> str:
        """Returns the plan for people."""
        work, found = self.work, self.capacity
        lines = [
            f"{self.table.title}: {work.rate:g} requests a second, {work.speech_s:g} s of speech each",
            f"{'STAGE':<20} {'PODS':>5} {'GPUS':>5} {'REQUESTS A POD':>15} {'TARGETREQUESTS':>15}",
        ]
        for row in self.to_json()["stages"]:
            cells = (row["gpus"] or "-", f"{row['requestsPerPod']:.1f}", row.get("targetRequests", "-"))
            lines.append(f"{row['name']:<20} {row['replicas']:>5} {cells[0]:>5} {cells[1]:>15} {cells[2]:>15}")
        lines.append(
            f"first audio {found.first_audio_s * 1000:.0f} ms at the {self.promise.percentile:g}th percentile "
            f"({found.alone_s * 1000:.0f} ms for a request alone); "
            f"these pods hold {found.most_rate:.1f} requests a second"
        )
        lines += [
            f"note: stage {self.names[part]} scales to {default:g} requests a pod; set scaling.targetRequests to "
            f"{_target(target)}, or the objective is missed before it grows"
            for part, default in self.defaults.items()
            if (target := found.stages[part].target_requests) is not None and target < default
        ]
        return "\n".join(lines)


def _target(requests: float) -> float:
    return float(f"{requests:.3g}")


def parse_duration(text: str) -> float:
    """Returns the seconds of a text such as 300ms, 10s or 2m; a bare number is seconds. Raises PlanError."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found["number"]) * _UNITS[found["unit"]] if found else 0.0
    if not 0 < seconds <= 3600:
        raise PlanError(f"{text!r} is not a duration of at most an hour, such as 300ms, 10s or 2m")
    return seconds


def read_promise(given: Sequence[str], percentile: float | None, pipeline: OmniPipeline) -> Promise:
    """Returns what is promised: by --objective, else by spec.objectives. Raises PlanError."""
    objectives = pipeline.spec.objectives
    seconds = objectives.first_audio_seconds if objectives is not None else None
    for text in given:
        name, equals, value = text.partition("=")
        if name != FIRST_AUDIO or not equals:
            raise PlanError(f"--objective {text!r} is not {FIRST_AUDIO}=DURATION, such as {FIRST_AUDIO}=300ms")
        seconds = parse_duration(value)
    if seconds is None:
        raise PlanError(f"give --objective {FIRST_AUDIO}=DURATION, or spec.objectives.firstAudioSeconds in the file")
    return Promise(seconds, percentile or (objectives.percentile if objectives is not None else 95.0))


def make_plan(pipeline: OmniPipeline, work: Work, promise: Promise, table: str | None) -> PodPlan:
    """Returns the plan of a pipeline. table: name or directory of a table; None: the one that the stages use. Raises
    PlanError."""
    names = _find_parts(pipeline)
    shape = _find_table(pipeline, table)
    stages = {part: pipeline.stage(name) for part, name in names.items()}
    limits = {part: stage.engine_args.max_num_seqs for part, stage in stages.items() if stage.engine_args.max_num_seqs}
    try:
        found = plan_capacity(shape, work, promise, limits)
    except ObjectiveUnreachableError as error:
        raise PlanError(str(error)) from error
    defaults = {
        part: stage.scaling.target_requests or TARGET_SHARE * limits[part]
        for part, stage in stages.items()
        if stage.scaling is not None and (stage.scaling.target_requests is not None or part in limits)
    }
    return PodPlan(
        shape, work, promise, found, names, {part: gpus_of(stage) for part, stage in stages.items()}, defaults
    )


def _find_parts(pipeline: OmniPipeline) -> dict[str, str]:
    found: dict[str, str] = {}
    for stage in pipeline.spec.stages:
        part = _ROLES.get(stage.component.rpartition("/")[2])
        if part is None or part in found:
            raise PlanError(
                f"stage {stage.name} runs {stage.component}; plans are for a thinker, a talker and a decoder"
            )
        found[part] = stage.name
    if missing := [part for part in STAGES if part not in found]:
        raise PlanError(f"the pipeline has no {missing[0]}; plans are for a thinker, a talker and a decoder")
    return {part: found[part] for part in STAGES}


def _find_table(pipeline: OmniPipeline, given: str | None) -> Table:
    if given is None and not all(stage.component.startswith("sim/") for stage in pipeline.spec.stages):
        raise PlanError(f"give --table: one of {', '.join(list_built_in())}, or a directory with your GPU's figures")
    try:
        if given is None:
            return read_table(next(iter(find_models(pipeline).values())))
        return read_table(BUILT_IN / given if given in list_built_in() else Path(given))
    except (ConfigurationError, ModelPathError) as error:
        raise PlanError(str(error)) from error
