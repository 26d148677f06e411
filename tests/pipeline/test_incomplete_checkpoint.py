"""If the engine's process refuses a checkpoint, the stage reports the reason, and not only that the engine ended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from omni_proto.pod_contract import ExitCode
from omni_proto.stage_config import Listen
from omni_stage.fetch.weights import INDEX
from support.omni_stages import stage_config
from support.stage_processes import StageProcess

pytestmark = pytest.mark.pipeline

GONE = "token2wav.code2wav_bigvgan_model.conv_post.weight"


def test_a_missing_tensor_is_named_across_processes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    directory = tmp_path / "holed"
    shutil.copytree(tiny_checkpoint, directory)
    shard = directory / json.loads((directory / INDEX).read_text())["weight_map"][GONE]
    tensors = load_file(shard)
    del tensors[GONE]
    save_file(tensors, shard)
    # Free ports, because another test may listen on the default ones.
    listen = Listen(host="127.0.0.1", grpc_port=0, health_port=0, metrics_port=0)
    config = stage_config("token2wav", directory).model_copy(update={"listen": listen})
    with StageProcess([config], tmp_path, fork=True) as stage:
        assert stage.start(wait=False).wait(120) == ExitCode.BAD_CONFIGURATION
        left = json.loads(stage.termination.read_text())
    assert left["reason"] == "InvalidConfiguration"
    assert f"1 tensor is missing: {GONE}" in left["message"]
    assert left["field"] == "model.path"
