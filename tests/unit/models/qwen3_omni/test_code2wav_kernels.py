"""code2wav's Triton kernels, without a GPU: interpreted, they give transformers' audio; they compile for each GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_stage.models.qwen3_omni.code2wav.decoder import ChunkDecoder
from omni_stage.models.qwen3_omni.code2wav.kernels import FusedOperators
from omni_stage.models.qwen3_omni.code2wav.steps import GRAPHED_FRAMES, StepRunner
from omni_stage.models.qwen3_omni.tiny.shapes import TinyShape, config_dict
from support.models.kernels import SHARED_KIB, Launches, compile_for
from support.processes.polling import PATIENCE_S

PUBLISHED = Path(__file__).parents[3] / "data" / "published" / "qwen3_omni_30b_a3b.config.json"
NODES = 150
"""Maximum number of nodes in the CUDA graph of a step."""
SHAPES: dict[str, dict[str, Any]] = {
    "narrow": {"upsample_rates": [3, 2], "upsampling_ratios": [2, 2]},
    "other": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 96,
        "decoder_dim": 24,
        "attention_bias": True,
        "sliding_window": 5,
        "upsample_rates": [4],
        "upsampling_ratios": [3],
    },
}
"""Few samples for each frame: the interpreter takes a hundred thousand times longer than a GPU."""


@pytest.mark.parametrize(
    "shape", [pytest.param(name, marks=[] if name == "narrow" else pytest.mark.full) for name in SHAPES]
)
def test_interpreted_kernels_give_transformers_audio(shape: str) -> None:
    """Chunks of 1 to 8 frames of streams that begin at different times."""
    config = config_dict(TinyShape(), {"system": 300, "user": 301, "assistant": 302})["code2wav_config"] | SHAPES[shape]
    result = subprocess.run(
        [sys.executable, "-m", "support.models.interpreted", json.dumps(config)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE_S,
        check=False,
    )
    assert not result.returncode, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    # These weights amplify rounding: 7e-5 was seen.
    assert found["transformers"] < 1e-3
    assert found["pytorch"] < 1e-4
    assert found["loudest"] > 0.2, "nearly silent audio would prove nothing"


def launch_step(streams: int, frames: int) -> Launches:
    """Returns what a step of the published model launches. Fake CUDA tensors: nothing runs, and no GPU is needed."""
    config = Qwen3OmniMoeCode2WavConfig(**json.loads(PUBLISHED.read_text())["code2wav_config"])
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        with torch.device("cuda"):
            model = Qwen3OmniMoeCode2Wav._from_config(config).eval()
        runner = StepRunner(ChunkDecoder(model), config.num_quantizers)
        runner.operators = FusedOperators
        plan = torch.zeros(streams, 3 + config.num_quantizers * frames, dtype=torch.int64, device="cuda")
        with Launches() as launches:
            audio = runner._forward(plan)
    assert tuple(audio.shape) == (streams, 1920 * frames)
    return launches


@pytest.mark.parametrize(("streams", "frames"), [(1, 1), (64, 4), (32, GRAPHED_FRAMES)])
def test_a_graph_can_hold_a_step_and_has_few_nodes(streams: int, frames: int) -> None:
    """One by one, kernels of a few microseconds limit a step of few frames."""
    launches = launch_step(streams, frames)
    assert launches.refused == []
    assert launches.count <= NODES, launches.kernels


@pytest.mark.parametrize(
    "capability", [pytest.param(one, marks=[] if one == 90 else pytest.mark.full) for one in SHARED_KIB]
)
def test_every_kernel_of_a_step_compiles(capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And fits into the shared memory of each supported GPU."""
    # A kernel of an earlier run would not be compiled.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    different = {launch.key: launch for launch in launch_step(1, GRAPHED_FRAMES).triton}
    assert {launch.function.__name__ for launch in different.values()} == {"_attend", "_gate", "_join", "_mix"}
    for launch in different.values():
        ptx = compile_for(capability, launch.source())
        assert not re.search(r"(sin|cos)\.approx", ptx), "accurate for small values only"
