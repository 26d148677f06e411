"""Before an engine starts, load_model_config refuses a checkpoint that cannot be served, and names the defect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_proto.stage_config import EngineArgs
from omni_stage.engine.arguments.engine_args import load_model_config
from omni_stage.errors import ConfigurationError
from support.stages.described_engines import build


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "holds no config.json", id="missing"),
        pytest.param("{", "cannot be read as JSON", id="not JSON"),
        pytest.param("[]", "has no model_type", id="no object"),
        pytest.param('{"architectures": []}', "has no model_type", id="no model_type"),
        pytest.param('{"model_type": "x", "architectures": "X"}', "list of names", id="architectures of a wrong type"),
    ],
)
def test_bad_checkpoint(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_model_config(tmp_path)
    assert caught.value.details.field == "model.path"


def test_a_checkpoint_in_mistrals_format_alone_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    (tmp_path / "consolidated.safetensors").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="holds Mistral's own format") as caught:
        load_model_config(tmp_path)
    assert "add the files of Hugging Face's format" in str(caught.value)
    assert caught.value.details.field == "model.path"


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a directory"):
        load_model_config(tmp_path / "absent")


def test_weights_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blobs" / "0a1b")
    with pytest.raises(
        ConfigurationError, match=r"model.safetensors is a link to nowhere, or user \d+ may not"
    ) as caught:
        load_model_config(tmp_path)
    assert caught.value.details.field == "model.path"


def test_good_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}')
    config = load_model_config(tmp_path)
    assert config.name == "Qwen2ForCausalLM"
    assert (config.model_type, config.architectures) == ("qwen2", ("Qwen2ForCausalLM",))


@pytest.mark.parametrize(
    ("given", "config", "expected"),
    [
        ("fp8", {}, "fp8_per_tensor"),
        ("fp8", {"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ("fp8", {"thinker_config": {"text_config": {"quantization_config": {"quant_method": "fp8"}}}}, "fp8"),
        ("fp8", {"quantization_config": None}, "fp8_per_tensor"),
        ("awq", {}, "awq"),
        (None, {}, None),
    ],
    ids=["dense", "fp8", "a part", "null", "another", "none"],
)
def test_fp8_also_quantizes_a_dense_checkpoint(
    tmp_path: Path, given: Any, config: dict[str, Any], expected: str | None
) -> None:
    """vLLM 0.32 refuses its method fp8 for a checkpoint that is not quantized."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **config}))
    args = build(EngineArgs(quantization=given)).for_checkpoint(load_model_config(tmp_path))
    assert args.quantization == expected
