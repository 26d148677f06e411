"""Writes a checkpoint with a release's sizes and random weights, to measure the release's cost without its weights.

    python -m benchmarks.gpu.stages.shaped 7b DIRECTORY

config.json, names, shapes, dtypes and shards are the published ones (tests/data/published), and so are the ids of the
tokenizer's special tokens. The output is meaningless; memory use, speed and concurrency are those of the release.
7b takes 22 GB of disk, 3b takes 12 GB. 30b-a3b writes only the weights of talker and code2wav, 7.7 GB.
"""

from __future__ import annotations

import json
import struct
import sys
from math import prod
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.gpu.checks import DRAWN
from omni_stage.models.qwen2_5_omni.tiny.checkpoint import ROTARY_TABLE, wrap_tokenizer, write_processor
from support.models.published import QWEN3, SIZES, read_added_tokens, write_published, write_sparse_shards

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_shaped_checkpoint(directory: Path, size: str) -> Path:
    """Write the checkpoint of "7b", "3b" or "30b-a3b" unless it exists. Returns its directory."""
    if (directory / DRAWN).exists():
        return directory
    if size == QWEN3:
        from benchmarks.gpu.qwen3_omni.shaped import write_shaped

        return write_shaped(directory)
    write_published(directory, size)
    settings = (directory / "preprocessor_config.json").read_text(encoding="utf-8")
    write_processor(directory, wrap_tokenizer(make_tokenizer()))
    (directory / "preprocessor_config.json").write_text(settings, encoding="utf-8")
    speakers = torch.load(directory / "spk_dict.pt", weights_only=True)
    for speaker in speakers.values():
        speaker["cond"], speaker["ref_mel"] = torch.randn(1, 192), torch.randn(1, 400, 80)
    torch.save(speakers, directory / "spk_dict.pt")
    for file in write_sparse_shards(directory, size):
        fill_shard(directory / file)
    (directory / DRAWN).touch()
    return directory


def make_tokenizer() -> Tokenizer:
    """Returns a byte-level BPE without merges whose special tokens have the published ids.

    All lower ids belong to the 256 bytes and to words of four letters. Raises ValueError if the published ids are not
    consecutive.
    """
    special = sorted(read_added_tokens().items(), key=lambda item: item[1])
    first = special[0][1]
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += ["Ġ" + _spell(index) for index in range(first - len(words))]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name, _ in special])
    if any(tokenizer.token_to_id(name) != token_id for name, token_id in special):
        raise ValueError("the published ids of the special tokens are not consecutive")
    return tokenizer


def _spell(number: int) -> str:
    letters = []
    for _ in range(4):
        number, rest = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[rest])
    return "".join(letters)


def fill_shard(file: Path) -> None:
    """Write random data into a shard that has only its header."""
    with file.open("r+b") as stream:
        length = struct.unpack("<Q", stream.read(8))[0]
        header: dict[str, Any] = json.loads(stream.read(length))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            stream.seek(8 + length + entry["data_offsets"][0])
            values = draw(name, tuple(entry["shape"]), torch.bfloat16 if entry["dtype"] == "BF16" else torch.float32)
            stream.write(memoryview(values.cpu().view(torch.uint8).numpy()))


def draw(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns the values of a weight of this shape, flattened.

    Norms are 1, other vectors such as biases are 0, and matrices are random with gain 1, all on the GPU if there is
    one. The rotary table has its true values, on the CPU.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if name == ROTARY_TABLE:
        return 1.0 / (10_000 ** (torch.arange(shape[0]).float() / shape[0]))
    if len(shape) < 2:
        return torch.full((prod(shape),), float(name.endswith(".weight")), dtype=dtype, device=device)
    return torch.randn(prod(shape), dtype=dtype, device=device) * (prod(shape[1:]) ** -0.5)


def main(arguments: list[str]) -> int:
    """Write the checkpoint. Returns 2 if the arguments are wrong, else 0."""
    if len(arguments) != 2 or arguments[0] not in (*SIZES, QWEN3):
        print(__doc__, file=sys.stderr)
        return 2
    print(write_shaped_checkpoint(Path(arguments[1]), arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
