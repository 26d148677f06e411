"""The edge processors compared with transformers' generate(), and the tensors that they refuse."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_stage.errors import InvalidTensorError
from omni_stage.models.qwen2_5_omni.checkpoint import CodecTokens, read_checkpoint, read_voices
from omni_stage.models.qwen2_5_omni.processors import TextRows, talker2token2wav, thinker2talker
from omni_stage.models.shared.config_file import torch_dtype
from omni_stage.models.shared.talker_feed import THINKER_EMBEDDING, EmbeddingTable
from support.media.samples import make_audio, make_image
from support.models.reference import Reference, ReferencePrompt, ReferenceSettings, load_reference

PROMPTS = {
    "text": ReferencePrompt("Tell me what the weather is like."),
    "image and sound": ReferencePrompt("What?", images=[make_image(0)], audios=[make_audio(0)]),
}
CODEC = CodecTokens(padding=129, start=130, end=131, mask=133)


@pytest.mark.parametrize("voice", ["Chelsie", "Ethan"])
@pytest.mark.parametrize("kind", PROMPTS)
@pytest.mark.parametrize("shape", ["small", "gqa"])
def test_talker_input_is_transformers_own(
    make_tiny_checkpoint: Callable[..., Path], shape: str, kind: str, voice: str
) -> None:
    """The talker gets the input that transformers' generate() passes to its talker."""
    directory = make_tiny_checkpoint(0, shape)
    reference, result = load_reference(directory), think(directory, kind)
    handed = capture_talker_input(reference, PROMPTS[kind], voice)
    checkpoint = read_checkpoint(directory)
    ids = [read_voices(directory)[voice].text_start_id, checkpoint.text_end_id, checkpoint.text_padding_id]
    table = EmbeddingTable(directory, THINKER_EMBEDDING, torch_dtype(checkpoint.dtype))
    start, end, padding = table.read(torch.tensor(ids))[:, None].unbind()
    tensors = {
        "x": result.rows,
        "mrope_positions": result.mrope_positions,
        "mrope_delta": result.mrope_positions.max()[None] + 1 - len(result.prompt_token_ids),
    }
    ours = thinker2talker(
        tensors, TextRows(start=start, end=end, padding=padding), checkpoint.codec, checkpoint.talker_positions
    )
    assert ours is not None
    assert ours.prompt_token_ids == handed["input_ids"][0].tolist()
    rows = torch.cat([handed["inputs_embeds"][0], handed["thinker_reply_part"][0]])
    torch.testing.assert_close(ours.input_rows, rows, atol=1e-5, rtol=0)
    positions, delta = reference.model.talker.get_rope_index(
        handed["input_text_ids"],
        handed.get("image_grid_thw"),
        None,
        torch.ones_like(handed["input_text_ids"]),
        False,
        handed.get("audio_feature_lengths"),
        None,
    )
    assert ours.mrope_positions.tolist() == positions[:, 0].T.tolist()
    assert ours.mrope_delta == int(delta)


@cache
def think(directory: Path, kind: str) -> Reference:
    """Returns what transformers' thinker makes of a prompt, whatever the voice. The stages after it take few steps."""
    settings = ReferenceSettings(thinker_tokens=9, talker_tokens=2, steps=2)
    return load_reference(directory).run(PROMPTS[kind], settings)


class HandedOverError(Exception):
    """Stops generate() where the talker would start."""


def capture_talker_input(reference: Any, prompt: ReferencePrompt, voice: str) -> dict[str, Any]:
    """Returns the keyword arguments with which the whole model's generate() calls talker.generate()."""
    handed: dict[str, Any] = {}
    talker = reference.model.talker

    def take(**kwargs: Any) -> Any:
        handed.update(kwargs)
        # Stop here: transformers 5.19 also passes pixel_values, which the talker's generate() then refuses.
        raise HandedOverError

    talker.generate = take
    try:
        with pytest.raises(HandedOverError):
            reference.model.generate(
                **reference.encode(prompt), speaker=voice, thinker_max_new_tokens=9, thinker_do_sample=False
            )
    finally:
        del talker.generate
    return handed


def text_rows(size: int = 4) -> TextRows:
    return TextRows(
        start=torch.full((1, size), 1.0), end=torch.full((1, size), 2.0), padding=torch.full((1, size), 3.0)
    )


def edge(rows: int, prompt: int, size: int = 4) -> dict[str, torch.Tensor]:
    return {
        "x": torch.arange(rows * size, dtype=torch.float32).reshape(rows, size) + 10,
        "mrope_positions": torch.arange(prompt)[:, None].repeat(1, 3),
        "mrope_delta": torch.zeros(1, dtype=torch.int64),
    }


def test_rows_are_framed_by_the_voice_and_the_end_of_text() -> None:
    prompt = thinker2talker(edge(5, 3), text_rows(), CODEC, 32_768)
    assert prompt is not None
    assert prompt.prompt_token_ids == [133, 133, 133, 129, 130]
    assert prompt.input_rows[:, 0].tolist() == [10, 14, 18, 1, 22, 26, 2, 3]
    assert prompt.mrope_positions[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_positions_continue_where_media_left_off() -> None:
    """The reply's positions begin at the prompt's length plus mrope_delta."""
    tensors = edge(5, 3) | {"mrope_delta": torch.tensor([-2])}
    prompt = thinker2talker(tensors, text_rows(), CODEC, 32_768)
    assert prompt is not None
    assert prompt.mrope_positions[3:].tolist() == [[1, 1, 1], [2, 2, 2]]
    assert prompt.mrope_delta == -2


def test_dtype_of_the_rows_is_kept() -> None:
    tensors = edge(5, 3) | {"x": torch.ones(5, 4, dtype=torch.bfloat16)}
    prompt = thinker2talker(tensors, text_rows(), CODEC, 32_768)
    assert prompt is not None
    assert prompt.input_rows.dtype is torch.bfloat16


def test_no_reply_is_nothing_to_say() -> None:
    assert thinker2talker(edge(3, 3), text_rows(), CODEC, 32_768) is None


BAD_EDGES: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "nothing": ({}, "x: is missing; the upstream stage sent nothing"),
    "no positions": ({"x": torch.ones(3, 4)}, "mrope_positions: is missing"),
    "rows of another size": (edge(3, 2, size=5), "a row has 5 values"),
    "fewer rows than prompt": (edge(2, 3), "2 rows are fewer than the 3 prompt tokens"),
    "flat rows": (edge(3, 2) | {"x": torch.ones(3)}, "must have 2 dimensions"),
    "two deltas": (edge(3, 2) | {"mrope_delta": torch.zeros(2)}, "must have one row"),
    "two positions a token": (edge(3, 2) | {"mrope_positions": torch.zeros(2, 2)}, r"must be \[prompt tokens, 3\]"),
    "position below zero": (edge(3, 2) | {"mrope_positions": torch.full((2, 3), -1)}, "at least 0 and below 32768"),
    "position beyond": (edge(3, 2) | {"mrope_positions": torch.full((2, 3), 32768)}, "at least 0 and below 32768"),
    "delta below zero": (edge(3, 2) | {"mrope_delta": torch.tensor([-3])}, "the reply must begin at"),
    "delta beyond": (edge(3, 2) | {"mrope_delta": torch.tensor([2**62])}, "the reply must begin at"),
    "no prompt": (edge(3, 0), r"must be \[prompt tokens, 3\]"),
}


@pytest.mark.parametrize("case", BAD_EDGES)
def test_bad_rows_are_refused_by_name(case: str) -> None:
    tensors, words = BAD_EDGES[case]
    with pytest.raises(InvalidTensorError, match=words) as caught:
        thinker2talker(tensors, text_rows(), CODEC, 32_768)
    assert caught.value.details.field.startswith("tensors.")


def test_codes() -> None:
    codes = torch.tensor([0, 5, 9])
    assert talker2token2wav({"codes": codes}, code_limit=10, max_codes=3) is codes
    assert talker2token2wav({"codes": codes[:0]}, code_limit=10, max_codes=3) is None


BAD_CODES = {
    "negative": (torch.tensor([-1]), "below 10"),
    "too large": (torch.tensor([10]), "below 10"),
    "too many": (torch.zeros(4, dtype=torch.int64), "at most 3"),
    "not flat": (torch.zeros(1, 1), "1 dimensions"),
}


@pytest.mark.parametrize("case", BAD_CODES)
def test_bad_codes_are_refused(case: str) -> None:
    codes, words = BAD_CODES[case]
    with pytest.raises(InvalidTensorError, match=words):
        talker2token2wav({"codes": codes}, code_limit=10, max_codes=3)
