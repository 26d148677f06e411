"""torch's global switches are the same in every stage and in every check on a GPU."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu.checks import Check, Context, Finding, run_check

from omni_stage.vllm_adapter.worker import torch_switches
from omni_stage.vllm_adapter.worker.torch_switches import SWITCHES, apply_switches, chosen_switches, read_switches

OTHER = {"float32_matmul_precision": "high"}
"""Values of switches that are not true or false, and differ from those that we chose."""


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = read_switches()
    yield
    for name, value in before.items():
        SWITCHES[name].write(value)


@pytest.fixture
def turned() -> None:
    """Every switch has another value than the one that we chose."""
    for name, switch in SWITCHES.items():
        switch.write(OTHER.get(name, not switch.value))


@pytest.mark.usefixtures("turned")
def test_every_switch_is_set_and_read() -> None:
    assert not any(value == chosen_switches()[name] for name, value in read_switches().items())
    apply_switches()
    assert read_switches() == chosen_switches()
    assert all(len(switch.why) > 20 for switch in SWITCHES.values())


@pytest.mark.usefixtures("turned")
def test_a_check_runs_with_the_switches_of_a_stage() -> None:
    seen: list[dict[str, Any]] = []

    def look(context: Context) -> Finding:
        seen.append(read_switches())
        return Finding("seen")

    context: Any = Silent()
    assert [result.status for result in run_check(Check("looks", "torch", look), context)] == ["PASS"]
    assert seen == [chosen_switches()]


class Silent:
    log = io.StringIO()

    def say(self, text: str) -> None:
        raise AssertionError(text)


def test_no_other_code_sets_a_switch_for_a_whole_process() -> None:
    """Every place that sets a global switch is this table, or restores it (token2wav's vocoder)."""
    root = Path(torch_switches.__file__).parents[2]
    words = (
        "cudnn.deterministic =",
        "cudnn.benchmark =",
        "allow_tf32 =",
        "set_float32_matmul_precision(",
        "enable_cudnn_sdp(",
        "use_deterministic_algorithms(",
    )
    setters = {
        path.name
        for path in root.rglob("*.py")
        if any(
            word in path.read_text(encoding="utf-8") for word in (*words, "cudnn.deterministic =", "cudnn.benchmark =")
        )
    }
    assert setters == {"speech.py"}


def test_torch_has_no_new_switch_of_this_kind() -> None:
    """A new version of torch with another SDPA backend or another reduction must be decided on purpose."""
    backends = {name for name in dir(torch.backends.cuda) if name.startswith("enable_") and name.endswith("_sdp")}
    assert backends == {f"enable_{name}_sdp" for name in ("flash", "mem_efficient", "math", "cudnn")}
