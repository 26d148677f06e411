"""Writes a checkpoint with Qwen3-Omni-30B-A3B's sizes and random weights.

The files contain the weights of the talker and code2wav and the thinker's embedding, 7.7 GB. The thinker creates its
other weights when it is loaded; all its weights together have 59 GiB. config.json and the names, shapes and dtypes of
the tensors are the published ones.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.gpu.checks import DRAWN
from benchmarks.gpu.stages.shaped import fill_shard
from omni_stage.models.qwen3_omni.model_configs import name_thinker
from omni_stage.models.qwen3_omni.tiny.checkpoint import write_tokenizer
from omni_stage.models.shared.talker_feed import THINKER_EMBEDDING
from support.models.published import (
    INDEX,
    QWEN3,
    PublishedTensor,
    published_tensors,
    write_header,
    write_published_qwen3,
)

LEFT_OUT = "left-out.json"
"""File that lists the configuration hooks of the stages whose weights are not in the shards."""
SHARD_BYTES = 2 << 30
TOKEN_IDS = {
    "<|endoftext|>": 151643,
    "<|im_start|>": 151644,
    "<|im_end|>": 151645,
    "<|vision_start|>": 151652,
    "<|vision_end|>": 151653,
    "<|image_pad|>": 151655,
    "<|video_pad|>": 151656,
    "<think>": 151667,
    "</think>": 151668,
    "<|audio_start|>": 151669,
    "<|audio_end|>": 151670,
    "<tts_pad>": 151671,
    "<tts_text_bos>": 151672,
    "<tts_text_eod>": 151673,
    "<|audio_pad|>": 151675,
}
"""The published ids of the special tokens that config.json names."""
ROLE_IDS = {"user": 872, "assistant": 77091, "system": 8948}


def write_shaped(directory: Path) -> Path:
    """Write the part of the checkpoint that stages read from files. Returns its directory."""
    write_published_qwen3(directory)
    write_tokenizer(directory, make_tokenizer())
    parts = [
        item for item in published_tensors(QWEN3) if item.name.startswith(("talker.", "code2wav.", THINKER_EMBEDDING))
    ]
    shards: list[list[PublishedTensor]] = [[]]
    for tensor in parts:
        if sum(item.nbytes for item in shards[-1]) > SHARD_BYTES:
            shards.append([])
        shards[-1].append(tensor)
    weight_map: dict[str, str] = {}
    for index, tensors in enumerate(shards, 1):
        file = f"model-{index:05}-of-{len(shards):05}.safetensors"
        write_header(directory / file, tensors, {"format": "pt"})
        fill_shard(directory / file)
        weight_map |= {tensor.name: file for tensor in tensors}
    total = sum(tensor.nbytes for tensor in parts)
    (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    (directory / LEFT_OUT).write_text(json.dumps([name_thinker.__name__]))
    (directory / DRAWN).touch()
    return directory


def make_tokenizer() -> Tokenizer:
    """Returns a byte-level BPE whose special tokens and role names have the published ids. Its only merges form role
    names."""
    first = min(TOKEN_IDS.values())
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = dict(enumerate(letters)) | {token_id: role for role, token_id in ROLE_IDS.items()}
    merges = [(role[:end], role[end]) for role in ROLE_IDS for end in range(1, len(role))]
    free = (index for index in range(len(letters), first) if index not in names)
    parts = {a + b for a, b in merges} - set(names.values())
    names |= dict(zip(free, sorted(parts), strict=False))
    vocab = {names.get(index, f"Ġw{index}"): index for index in range(first)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {token_id: name for name, token_id in TOKEN_IDS.items()}
    last = max(special)
    tokenizer.add_special_tokens(
        [AddedToken(special.get(index, f"<|unnamed_{index}|>"), special=True) for index in range(first, last + 1)]
    )
    if any(tokenizer.token_to_id(name) != token_id for name, token_id in (TOKEN_IDS | ROLE_IDS).items()):
        raise ValueError("special tokens do not have the published ids")
    return tokenizer
