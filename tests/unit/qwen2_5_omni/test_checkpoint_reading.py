"""What the components read of a checkpoint, and how they say what is wrong with it."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2_5OmniConfig

from omni_stage.errors import ConfigurationError
from omni_stage.models.qwen2_5_omni.checkpoint import read_checkpoint, read_embedding_rows, read_voices


def edit(source: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    config = json.loads((source / "config.json").read_text())
    change(config)
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_facts_of_the_real_model(tmp_path: Path) -> None:
    """transformers' default configuration is the 7B model's."""
    config = Qwen2_5OmniConfig().to_dict() | {"torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.hidden_size, checkpoint.dtype) == (3584, "bfloat16")
    assert (checkpoint.codec.padding, checkpoint.codec.start, checkpoint.codec.end, checkpoint.codec.mask) == (
        8292,
        8293,
        8294,
        8296,
    )
    assert checkpoint.codec.stop_ids == (8292, 8294)
    assert (checkpoint.code_limit, checkpoint.max_codes) == (8194, 16384)


def test_rows_are_those_of_the_embedding(tiny_checkpoint: Path) -> None:
    rows = read_embedding_rows(tiny_checkpoint, [7, 3, 639])
    assert rows.shape == (3, 128)
    single = [read_embedding_rows(tiny_checkpoint, [token]) for token in (7, 3, 639)]
    assert torch.equal(rows, torch.cat(single))


def test_default_voice_comes_first(tiny_checkpoint: Path) -> None:
    voices = read_voices(tiny_checkpoint)
    assert list(voices) == ["Chelsie", "Ethan"]
    assert voices["Chelsie"].text_start_id != voices["Ethan"].text_start_id
    assert voices["Chelsie"].reference_mel.dtype is torch.float32


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another model": (lambda config: config.pop("talker_config"), "not a Qwen2.5-Omni configuration"),
    "a field is gone": (lambda config: config["token2wav_config"]["dit_config"].pop("repeats"), "repeats"),
    "sizes differ": (lambda config: config["talker_config"].update(embedding_size=5), "must equal the thinker's"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_configuration(tiny_checkpoint: Path, tmp_path: Path, case: str) -> None:
    change, words = BROKEN[case]
    with pytest.raises(ConfigurationError, match=words) as caught:
        read_checkpoint(edit(tiny_checkpoint, tmp_path, change))
    assert caught.value.details.field == "model.path"


def test_dtype_is_looked_for_in_the_parts(tiny_checkpoint: Path, tmp_path: Path) -> None:
    def move(config: dict[str, Any]) -> None:
        config.pop("dtype")
        config["thinker_config"]["torch_dtype"] = "float16"

    assert read_checkpoint(edit(tiny_checkpoint, tmp_path, move)).dtype == "float16"


@pytest.mark.parametrize("content", [None, b"not json", b"[]"], ids=["missing", "not json", "a list"])
def test_unreadable_configuration(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        read_checkpoint(tmp_path)


class Runs:
    """A pickle that runs code when it is loaded without weights_only."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("pwned"),))


def test_voices_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol_file in ("zip", "plain"):
        if protocol_file == "zip":
            torch.save({"Eve": Runs()}, tmp_path / "spk_dict.pt")
        else:
            (tmp_path / "spk_dict.pt").write_bytes(pickle.dumps({"Eve": Runs()}, protocol=2))
        with pytest.raises(ConfigurationError, match="does not hold voices"):
            read_voices(tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("content", [{}, {"Eve": {"bos_token": 1}}], ids=["none", "without tensors"])
def test_malformed_voices(tmp_path: Path, content: dict[str, Any]) -> None:
    torch.save(content, tmp_path / "spk_dict.pt")
    with pytest.raises(ConfigurationError):
        read_voices(tmp_path)


def test_missing_files_are_named(tmp_path: Path, tiny_checkpoint: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"spk_dict\.pt"):
        read_voices(tmp_path)
    with pytest.raises(ConfigurationError, match=r"model\.safetensors"):
        read_embedding_rows(tmp_path, [0])
    shutil.copy(tiny_checkpoint / "model.safetensors.index.json", tmp_path)
    with pytest.raises(ConfigurationError, match="embed_tokens"):
        read_embedding_rows(tmp_path, [0])
