"""How many characters of a text one token can stand for. Pure.

vLLM refuses longer prompts by the same comparison (`max_chars_per_token`), but takes the longest entry of any
vocabulary. Here the whole tokenizer is read, because a step before or inside the vocabulary may drop characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tokenizers.pre_tokenizers import ByteLevel

_COMPOSED: Final = 4
"""Most characters that Unicode's composition (NFC, NFKC) joins to one."""
_KEEPING_NORMALIZERS: Final = {"Prepend": 1, "Lowercase": 1, "NFD": 1, "NFKD": 1, "ByteLevel": 1} | dict.fromkeys(
    ("NFC", "NFKC"), _COMPOSED
)
"""Normalizers that drop no character, and how many they may join to one."""
_KEEPING_SPLITS: Final = frozenset({"ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "Split", "Punctuation"})


def chars_per_token(tokenizer: Mapping[str, Any]) -> int | None:
    """Returns the most characters of a text that one token of the tokenizer can stand for.

    `tokenizer`: the content of tokenizer.json. None if there is no such number: if the tokenizer may drop characters,
    for example spaces, or may read a long unknown word as one token.
    """
    joined = _most_joined(tokenizer.get("normalizer"))
    added = tokenizer.get("added_tokens") or ()
    if joined is None or not _keeps_all(tokenizer.get("pre_tokenizer")):
        return None
    if any(token.get("lstrip") or token.get("rstrip") for token in added):
        # Such a token takes the spaces beside it, however many there are.
        return None
    model = tokenizer["model"]
    if model.get("type") != "BPE" or not _knows_all(model):
        return None
    # An entry of a byte-level vocabulary has one character per byte, so this is never too few.
    longest = max(map(len, model["vocab"]), default=1)
    return max([joined * longest, *(len(token["content"]) for token in added)])


def _most_joined(normalizer: Mapping[str, Any] | None) -> int | None:
    """Returns how many characters a normalizer may join to one; None if it may drop characters."""
    if normalizer is None:
        return 1
    kind = normalizer["type"]
    if kind == "Sequence":
        product = 1
        for step in normalizer["normalizers"]:
            joined = _most_joined(step)
            if joined is None:
                return None
            product *= joined
        return product
    if kind == "Replace":
        found = normalizer["pattern"].get("String")
        return None if not found or not normalizer["content"] else len(found)
    return _KEEPING_NORMALIZERS.get(kind)


def _keeps_all(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return True
    if pre_tokenizer["type"] == "Sequence":
        return all(map(_keeps_all, pre_tokenizer["pretokenizers"]))
    return pre_tokenizer["type"] in _KEEPING_SPLITS and pre_tokenizer.get("behavior") != "Removed"


def _knows_all(model: Mapping[str, Any]) -> bool:
    """Returns whether every character becomes a token: by its bytes, or each unknown one by a token of its own."""
    vocabulary = model["vocab"]
    if model.get("unk_token") and not model.get("fuse_unk"):
        return True
    if model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        return True
    return all(letter in vocabulary for letter in ByteLevel.alphabet())
