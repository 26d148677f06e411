"""The stage server also serves engines that do not need torch, in a process that cannot import torch."""

from __future__ import annotations

import os
from pathlib import Path

from omni_proto.client import OmniClient
from support.processes.stage_processes import CHEAP, StageProcess, chain_configs, pick_chain_ports

NONE = "raise ImportError('this process must do without it')\n"


def test_a_chain_of_three_stages(tmp_path: Path) -> None:
    for name in ("torch", "vllm", "transformers"):
        (tmp_path / "none" / name).mkdir(parents=True)
        (tmp_path / "none" / name / "__init__.py").write_text(NONE)
    ports = pick_chain_ports()
    configs = list(chain_configs(ports).values())
    tests = str(Path(__file__).parents[2])
    environment = {"PYTHONPATH": os.pathsep.join((str(tmp_path / "none"), tests))}
    stages = StageProcess(configs, tmp_path, CHEAP, environment)
    with stages.start(), OmniClient(f"127.0.0.1:{ports['thinker']}") as client:
        result = client.run(text="Hello", sampling={"thinker": {"max_tokens": 3}, "talker": {"max_tokens": 5}})
    assert result.finished.keys() == {"thinker", "talker", "token2wav"}
    # Each code gives 8 samples of 16 bits.
    assert result.audio == bytes(5 * 8 * 2)
