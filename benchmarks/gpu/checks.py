"""The checks of `make gpu`: their form, their requirements, how they run and what they print.

A check has a function that takes a Context and returns one Finding or several, and it names its requirements. If a
requirement is missing, the result is a SKIP with the reason. If the function raises an error, the result is a FAIL with
the traceback in the log. The checks do not need pytest.
"""

from __future__ import annotations

import importlib.util
import io
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["PASS", "FAIL", "SKIP"]
Part = Literal["torch", "whole"]
DRAWN = "weights-are-drawn"
"""Name of an empty file in a checkpoint's directory that says that the weights are random, not the published ones."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: the measured value, and the limit or the expected value."""

    value: str
    limit: str = "-"
    ok: bool = True
    name: str = ""
    """Appended to the check's name, if the check has several lines."""
    skipped: str = ""
    """Why this line has no value."""
    data: dict[str, Any] = field(default_factory=dict)
    """Further figures, for the JSON."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a finding, under the name of its check."""

    status: Status
    name: str
    value: str
    limit: str
    data: dict[str, Any] = field(default_factory=dict)
    log: str = ""

    def line(self) -> str:
        """Returns the line that is printed. Blanks separate fields, so blanks within a value become underscores."""
        return " ".join((self.status, self.name, self.value.replace(" ", "_") or "-", self.limit.replace(" ", "_")))

    def to_row(self) -> dict[str, Any]:
        """Returns the row of results.json."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Context:
    """The machine, model and folders that a check works with."""

    device: str
    """cuda or cpu."""
    gpus: int
    out: Path
    """Folder for logs, audio and tables; it goes into the file that is sent back."""
    model: Path | None = None
    """Directory of the published checkpoint, or of one with its sizes and random weights."""
    family: str = "qwen2_5_omni"
    """Family whose tiny checkpoint the stages serve if there is no model."""
    log: io.StringIO = field(default_factory=io.StringIO)

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU."""
        return self.device == "cuda"

    @property
    def shaped(self) -> bool:
        """Whether the model has the release's sizes and random weights (benchmarks.gpu.stages.shaped)."""
        return self.model is not None and (self.model / DRAWN).exists()

    def say(self, text: str) -> None:
        """Write a line to the check's log."""
        self.log.write(text.rstrip() + "\n")


Run = Callable[[Context], Finding | Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its name, its part, its function and its requirements."""

    name: str
    part: Part
    run: Run
    needs: tuple[str, ...] = ()
    """Keys of NEEDS."""


NEEDS: dict[str, tuple[Callable[[Context], bool], str]] = {
    "gpu": (lambda context: context.on_gpu, "needs a GPU"),
    "2 gpus": (lambda context: context.gpus >= 2, "needs two GPUs"),
    "vllm": (lambda _: _has("vllm"), "vLLM is not installed"),
    "transformers": (lambda _: _has("transformers"), "transformers is not installed: use the bundle"),
    "root": (lambda _: os.geteuid() == 0, "needs root"),
    "weights": (
        lambda context: context.model is not None and not context.shaped,
        "needs MODEL=directory of the published checkpoint",
    ),
}


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def run_check(check: Check, context: Context) -> Iterator[Result]:
    """Yields the results of a check: one SKIP if a requirement is missing, and one FAIL if it raises."""
    missing = [reason for need in check.needs for has, reason in [NEEDS[need]] if not has(context)]
    if missing:
        yield Result("SKIP", check.name, "; ".join(missing), "-")
        return
    try:
        from omni_stage.vllm_adapter.worker.torch_switches import apply_switches

        apply_switches()  # here, so that the list of checks needs no torch
        found = check.run(context)
        findings = [found] if isinstance(found, Finding) else list(found)
    except Exception as error:  # noqa: BLE001 - a check may fail in any way, and the others still run
        context.say(traceback.format_exc())
        yield Result("FAIL", check.name, f"{type(error).__name__}: {error}"[:200], "-", log=_take_log(context))
        return
    log = _take_log(context)
    for finding in findings:
        name = f"{check.name}.{finding.name}" if finding.name else check.name
        if finding.skipped:
            yield Result("SKIP", name, finding.skipped, "-")
        else:
            yield Result("PASS" if finding.ok else "FAIL", name, finding.value, finding.limit, finding.data, log)


def _take_log(context: Context) -> str:
    text = context.log.getvalue()
    context.log.seek(0)
    context.log.truncate()
    return text


def at_most(
    value: float, limit: float, *, name: str = "", unit: str = "", data: dict[str, Any] | None = None
) -> Finding:
    """Returns the finding for a figure that must not exceed a limit. NaN always fails."""
    return Finding(f"{value:.4g}{unit}", f"<={limit:.4g}{unit}", ok=value <= limit, name=name, data=data or {})


def equal(value: object, expected: object, *, name: str = "") -> Finding:
    """Returns the finding for a value that must equal the expected one."""
    return Finding(str(value), f"=={expected}", ok=value == expected, name=name)
