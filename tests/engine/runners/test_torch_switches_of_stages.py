"""A stage's engine runs with the switches of our table, whatever its process had before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omni_stage.vllm_adapter.worker.torch_switches import SWITCHES, chosen_switches, read_switches
from support.engines.omni_stages import run_omni_stages

pytestmark = pytest.mark.engine


@pytest.fixture
def turned(make_tiny_checkpoint: Callable[..., Path]) -> Iterator[Path]:
    """The checkpoint, which is written before every switch of this process has another value."""
    checkpoint = make_tiny_checkpoint(0, "small", "qwen3_omni")
    before = read_switches()
    for switch in SWITCHES.values():
        switch.write("high" if isinstance(switch.value, str) else not switch.value)
    yield checkpoint
    for name, value in before.items():
        SWITCHES[name].write(value)


@pytest.mark.parametrize("stage", ["talker", "code2wav"])
async def test_an_engine_sets_every_switch(turned: Path, stage: str) -> None:
    """One autoregressive engine and one of the other kind, in this process."""
    async with run_omni_stages(turned, stage, family="qwen3_omni"):
        assert read_switches() == chosen_switches()
