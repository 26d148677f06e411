"""Text to token ids, at a cost that the longest prompt bounds, however long the text is."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from tokenizers import Tokenizer

from omni_stage.errors import PromptTooLongError
from omni_stage.models.shared.text.longest_token import chars_per_token

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

    def encode(self, text: str, most: int | None, field: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the ids of a text, in which names of special tokens stand for these.

        `most`: the number of tokens that the engine takes, or None. Raises PromptTooLongError, often before the whole
        text is encoded. The ids of text that is only a little too long are returned.
        """
        self.check(text, most, field)
        with self._lock:
            return list(self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])

    def encode_plain(self, text: str, most: int | None, field: str) -> list[int]:
        """As `encode`, but names of special tokens are text like any other, and no special tokens are added."""
        self._check(text, most, field, self._count_plain)
        if self._plain is not None:
            return list(self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        with self._lock:
            return list(self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids, without special tokens."""
        with self._lock:
            return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def check(self, text: str, most: int | None, field: str) -> None:
        """Refuse a text that is clearly too long. Raises PromptTooLongError."""
        self._check(text, most, field, self._count)

    def _check(self, text: str, most: int | None, field: str, count: Callable[[str], int]) -> None:
        if most is None or len(text) <= max(SLICE_CHARS, most):
            return
        if self.chars_per_token is not None and len(text) > most * self.chars_per_token:
            raise _too_long(most, field)
        tokens = 0
        for number, begin in enumerate(range(0, len(text), SLICE_CHARS), 1):
            tokens += count(text[begin : begin + SLICE_CHARS])
            if tokens > most + number * _CUT_TOKENS:
                raise _too_long(most, field)

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


def _too_long(most: int, field: str) -> PromptTooLongError:
    """Returns the error for text of more than `most` tokens."""
    return PromptTooLongError(
        f"{field}: more than {most} tokens, at most {most} fit; shorten the prompt",
        field=field,
        limit=f"{most} tokens",
    )
