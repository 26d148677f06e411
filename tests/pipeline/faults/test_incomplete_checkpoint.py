"""If the engine's process does not start, the stage reports the reason, and not only that the engine ended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from omni_proto.pod_contract import ExitCode
from omni_proto.stage_config import Listen, StageConfig
from omni_stage.fetch.checkpoint import INDEX
from support.engines.omni_stages import stage_config
from support.processes.stage_processes import START_TIMEOUT_S, StageProcess

pytestmark = pytest.mark.pipeline

GONE = "token2wav.code2wav_bigvgan_model.conv_post.weight"


def test_a_missing_tensor_is_named_across_processes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    directory = tmp_path / "holed"
    shutil.copytree(tiny_checkpoint, directory)
    shard = directory / json.loads((directory / INDEX).read_text())["weight_map"][GONE]
    tensors = load_file(shard)
    del tensors[GONE]
    save_file(tensors, shard)
    left = read_refusal(stage_config("token2wav", directory), tmp_path)
    assert f"1 tensor is missing: {GONE}" in left["message"]
    assert left["field"] == "model.path"


def test_a_cache_too_small_for_one_request_is_named_across_processes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """vLLM raises this in its engine core, outside of our workers."""
    left = read_refusal(stage_config("thinker", tiny_checkpoint, max_model_len=4096, kv_cache_memory_mib=1), tmp_path)
    assert "decreasing engineArgs.maxModelLen" in left["message"]
    assert "engineArgs.kvCacheMemoryMib" in left["message"]
    assert left["field"] == "engineArgs.maxModelLen"


def read_refusal(config: StageConfig, folder: Path) -> dict[str, str]:
    """Starts a stage that refuses its configuration. Returns its termination message."""
    # Free ports, because another test may listen on the default ones.
    listen = Listen(host="127.0.0.1", grpc_port=0, health_port=0, metrics_port=0)
    with StageProcess([config.model_copy(update={"listen": listen})], folder, fork=True) as stage:
        assert stage.start(wait=False).wait(START_TIMEOUT_S) == ExitCode.BAD_CONFIGURATION
        left: dict[str, str] = json.loads(stage.termination.read_text())
    assert left["reason"] == "InvalidConfiguration"
    return left
