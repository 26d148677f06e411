"""Text to token ids, at a cost that the longest prompt bounds, however long the text is."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from omni_stage.errors import PromptTooLongError

SLICE_CHARS: Final = 16 << 10
"""Longer text is first counted in slices of this length."""
_CUT_TOKENS: Final = 64
"""Most tokens that a cut between two slices adds: it may divide a word, or the name of a special token."""


class TextEncoder:
    """Encodes and decodes with a checkpoint's tokenizer. Safe to use from several threads.

    A tokenizer of the `tokenizers` library works without Python's lock, so other threads continue meanwhile. Its
    settings never change here, because a change fails while another thread encodes. Other tokenizers are used by one
    thread at a time.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._backend = backend if isinstance(backend, Tokenizer) else None
        self._plain: Tokenizer | None = None
        self._lock: AbstractContextManager[Any] = threading.Lock() if self._backend is None else nullcontext()
        self.chars_per_token: int | None = None
        """Most characters of a text that one token stands for; None if that is not bounded."""
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
            self._plain = copy.deepcopy(self._backend)
            self._plain.encode_special_tokens = True
            self.chars_per_token = chars_per_token(json.loads(self._backend.to_str()))

    def encode(self, text: str, maximum: int | None, field: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the ids of a text, in which names of special tokens stand for these.

        `maximum`: the number of tokens that the engine takes, or None. Raises PromptTooLongError, often before the
        whole text is encoded. The ids of text that is only a little too long are returned.
        """
        self.check(text, maximum, field)
        with self._lock:
            return list(self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])

    def encode_plain(self, text: str, maximum: int | None, field: str) -> list[int]:
        """As `encode`, but names of special tokens are text like any other, and no special tokens are added."""
        self._check(text, maximum, field, self._count_plain)
        if self._plain is not None:
            return list(self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        with self._lock:
            return list(self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids, without special tokens."""
        with self._lock:
            return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def check(self, text: str, maximum: int | None, field: str) -> None:
        """Refuse a text that is clearly too long. Raises PromptTooLongError."""
        self._check(text, maximum, field, self._count)

    def _check(self, text: str, maximum: int | None, field: str, count: Callable[[str], int]) -> None:
        if maximum is None or len(text) <= max(SLICE_CHARS, maximum):
            return
        if self.chars_per_token is not None and len(text) > maximum * self.chars_per_token:
            raise _too_long(maximum, field)
        tokens = 0
        for number, begin in enumerate(range(0, len(text), SLICE_CHARS), 1):
            tokens += count(text[begin : begin + SLICE_CHARS])
            if tokens > maximum + number * _CUT_TOKENS:
                raise _too_long(maximum, field)

    def _count(self, text: str) -> int:
        if self._backend is not None:
            # The faster of two calls with the same ids, and unlike `encode` it frees Python's lock.
            return len(self._backend.encode_batch_fast([text], add_special_tokens=False)[0])
        with self._lock:
            return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _count_plain(self, text: str) -> int:
        if self._plain is None:
            return self._count(text)
        return len(self._plain.encode_batch_fast([text], add_special_tokens=False)[0])


def _too_long(maximum: int, field: str) -> PromptTooLongError:
    """Returns the error for text of more than `maximum` tokens."""
    return PromptTooLongError(
        f"{field}: more than {maximum} tokens, at most {maximum} fit; shorten the prompt",
        field=field,
        limit=f"{maximum} tokens",
    )


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

    vLLM refuses longer prompts by the same comparison (`max_chars_per_token`), but takes the longest entry of any
    vocabulary. Here the whole tokenizer is read, because a step before or inside the vocabulary may drop characters.
    """
    joined = _maximum_joined(tokenizer.get("normalizer"))
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


def _maximum_joined(normalizer: Mapping[str, Any] | None) -> int | None:
    """Returns how many characters a normalizer may join to one; None if it may drop characters."""
    if normalizer is None:
        return 1
    kind = normalizer["type"]
    if kind == "Sequence":
        product = 1
        for step in normalizer["normalizers"]:
            joined = _maximum_joined(step)
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
