"""How much text a token can stand for, for each kind of tokenizer; held against the tokenizers themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from omni_stage.models.shared.text.encoder import chars_per_token

BYTES = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def byte_level(**parts: Any) -> Tokenizer:
    """Returns a byte-level tokenizer whose longest entry is "abcd"."""
    merges = [("a", "b"), ("c", "d"), ("ab", "cd")]
    vocab = {**BYTES, "ab": 256, "cd": 257, "abcd": 258}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def with_added(token: AddedToken) -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([token])
    return tokenizer


def of_words(**settings: Any) -> Tokenizer:
    names = ["<unk>", "a", "aa", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {name: number for number, name in enumerate(names)}
    return Tokenizer(models.BPE(vocab=vocab, merges=[("a", "a")], **settings))


CASES: dict[str, tuple[Tokenizer, int | None]] = {
    "byte-level": (byte_level(), 4),
    "a long special token": (with_added(AddedToken("<|im_start|>", special=True)), 12),
    "a token that takes the spaces beside it": (with_added(AddedToken("<mask>", lstrip=True)), None),
    "composition": (byte_level(normalizer=normalizers.NFC()), 16),
    "spaces replaced": (byte_level(normalizer=normalizers.Replace(" ", "_")), 4),
    "two characters replaced by one": (byte_level(normalizer=normalizers.Replace("  ", "_")), 8),
    "characters deleted": (byte_level(normalizer=normalizers.Replace("x", "")), None),
    "spaces stripped": (byte_level(normalizer=normalizers.Sequence([normalizers.NFD(), normalizers.Strip()])), None),
    "accents dropped": (byte_level(normalizer=normalizers.StripAccents()), None),
    "spaces dropped": (
        byte_level(
            pre_tokenizer=pre_tokenizers.Sequence(
                [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        ),
        None,
    ),
    "split at spaces": (byte_level(pre_tokenizer=pre_tokenizers.Whitespace()), None),
    "unknown characters dropped": (of_words(), None),
    "one token for unknown characters in a row": (of_words(unk_token="<unk>", fuse_unk=True), None),
    "one token for each unknown character": (of_words(unk_token="<unk>"), 6),
    "bytes of unknown characters": (of_words(byte_fallback=True), 6),
    "words": (Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]")), None),
    "pieces": (Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0)), None),
}
TEXTS = (
    "abcd" * 500,
    " " * 999,
    "  a" * 400,
    "x" * 999,
    "e\u0301" * 500,
    "\u1112\u1161\u11ab" * 300,
    "<|im_start|>" * 90,
)


@pytest.mark.parametrize("case", CASES)
def test_no_token_stands_for_more(case: str) -> None:
    tokenizer, expected = CASES[case]
    most = chars_per_token(json.loads(tokenizer.to_str()))
    assert most == expected
    if most is None:
        return
    for text in TEXTS:
        assert len(tokenizer.encode(text).ids) * most >= len(text)


def test_dropped_characters_are_real() -> None:
    """Each tokenizer without a number turns some long text into few tokens, so a number would refuse good prompts."""
    for case, (tokenizer, expected) in CASES.items():
        if expected is None:
            texts = ("<mask>" + " " * 5000 + "<mask>", *(f"{letter * 5000}a" for letter in "x b\u0301"), "ab" * 2000)
            assert min(len(tokenizer.encode(text).ids) for text in texts) < 1000, case
