"""The checks of `make gpu`: their form, what they need, how they run and what they print.

A check is a function of a Context that returns a Finding or several; it states what it needs, and where that is missing
it is a SKIP with the reason. What it raises is a FAIL, with the traceback in the log. Nothing here needs pytest.
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
"""A file of this name says that a checkpoint's directory holds no published weights."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: the measured value, and the limit or the expected value."""

    value: str
    limit: str = "-"
    ok: bool = True
    name: str = ""
    """Behind the check's name, where a check has several lines."""
    skipped: str = ""
    """Why this line has no value."""
    data: dict[str, Any] = field(default_factory=dict)
    """Further figures, for the JSON."""


@dataclass(frozen=True, slots=True)
class Result:
    """A finding with the check that it is of."""

    status: Status
    name: str
    value: str
    limit: str
    data: dict[str, Any] = field(default_factory=dict)
    log: str = ""

    def line(self) -> str:
        """As it is printed: fields are separated by blanks, so that values have none."""
        return " ".join((self.status, self.name, self.value.replace(" ", "_") or "-", self.limit.replace(" ", "_")))

    def to_row(self) -> dict[str, Any]:
        """Returns the finding as the JSON holds it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Context:
    """What checks are given."""

    device: str
    """cuda or cpu."""
    gpus: int
    out: Path
    """Folder for logs, audio and tables; it goes into the file that is sent back."""
    model: Path | None = None
    """Directory of the published checkpoint, or of one of its sizes."""
    family: str = "qwen2_5_omni"
    """Whose tiny checkpoint the stages serve."""
    log: io.StringIO = field(default_factory=io.StringIO)

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU."""
        return self.device == "cuda"

    @property
    def shaped(self) -> bool:
        """Whether the model has the release's sizes and random weights (benchmarks.gpu.shaped)."""
        return self.model is not None and (self.model / DRAWN).exists()

    def say(self, text: str) -> None:
        """A line for the check's log."""
        self.log.write(text.rstrip() + "\n")


Run = Callable[[Context], Finding | Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """A check by name, in the part of the table that it belongs to."""

    name: str
    part: Part
    run: Run
    needs: tuple[str, ...] = ()
    """Of NEEDS."""


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
    """Yields the results of a check; one SKIP if it lacks something, one FAIL if it raises."""
    missing = [reason for need in check.needs for has, reason in [NEEDS[need]] if not has(context)]
    if missing:
        yield Result("SKIP", check.name, "; ".join(missing), "-")
        return
    try:
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
    """A figure that must not exceed a limit; NaN always fails."""
    return Finding(f"{value:.4g}{unit}", f"<={limit:.4g}{unit}", ok=value <= limit, name=name, data=data or {})


def equal(value: object, expected: object, *, name: str = "") -> Finding:
    """Something that must be as expected."""
    return Finding(str(value), f"=={expected}", ok=value == expected, name=name)
