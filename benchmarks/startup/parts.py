"""Splits a stage's start into its parts, from the marks that its processes wrote. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """The moment at which a process passed a marked point."""

    pid: int
    label: str
    at: float
    """Seconds on the wall clock."""
    cpu: float
    """Processor seconds of the process so far."""


PARTS = (
    ("interpreter, torch, transformers, vLLM", "server", "start_template ends"),
    ("our modules", "server", "omni_stage.service.server.stage_server imported"),
    ("component and checkpoint", "server", "build_stage_engine ends"),
    ("engine configuration", "server", "VllmStageEngine._create_vllm_config ends"),
    ("start the engine's process", "core", "EngineCore.__init__ begins"),
    ("device and runner", "core", "CPUWorker.init_device ends"),
    ("load the model", "core", "Worker.load_model ends"),
    ("KV cache and warm-up pass", "core", "EngineCore._initialize_kv_caches ends"),
    ("hand-shake", "server", "AsyncEngineCore.start ends"),
    ("warm-up request", "server", "VllmStageEngine._start ends"),
)
"""Part, process and mark: a part ends when the process writes the mark, and begins where the part before it ends."""
LAST_PART = "ports and address file"


def split_start(marks: Sequence[Mark], launched: float, ready: float) -> dict[str, float]:
    """Returns the seconds of each part of a start. Raises ValueError if a mark is missing."""
    server = next((mark.pid for mark in marks if mark.label == PARTS[0][2]), None)
    cores = {mark.pid for mark in marks if mark.label == "EngineCore.__init__ begins"} - {server}
    parts: dict[str, float] = {}
    since = launched
    for name, process, label in PARTS:
        pids = {server} if process == "server" else cores
        passed = [mark.at for mark in marks if mark.label == label and mark.pid in pids]
        if not passed:
            raise ValueError(f"the start has no mark {label!r}")
        parts[name] = max(0.0, passed[-1] - since)
        since = max(since, passed[-1])
    parts[LAST_PART] = max(0.0, ready - since)
    return parts


def cpu_seconds(marks: Sequence[Mark]) -> float:
    """Returns the sum of the processor seconds of all processes, each up to its last mark."""
    last = {mark.pid: mark.cpu for mark in marks}
    return sum(last.values())
