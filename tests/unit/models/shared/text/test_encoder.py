"""Text that is too long is refused at a cost that the longest prompt bounds. Ids are those of transformers."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tokenizers import Tokenizer

from omni_stage.errors import PromptTooLongError
from omni_stage.models.shared.text.encoder import SLICE_CHARS, TextEncoder
from support.models.generic_checkpoint import train_tokenizer

PIECES = ("a", " ", "\n", "word ", "\u0e01", "\U0001f600", "<|im_start|>", "x1! ", "Hello there. ", "\t\t", "e\u0301")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer()


def test_ids_are_those_of_transformers(tokenizer: Any) -> None:
    """Also for text that is counted in slices first."""
    encoder, rng = TextEncoder(tokenizer), random.Random(1)
    for size in (1, 10, 3000):
        text = "".join(rng.choices(PIECES, k=size)) * 3
        for special in (True, False):
            expected = tokenizer(text, add_special_tokens=special)["input_ids"]
            assert encoder.encode(text, len(expected), "start.text", add_special_tokens=special) == expected
        plain = train_tokenizer()(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert encoder.encode_plain(text, len(plain), "start.reply") == plain


@pytest.mark.parametrize("piece", PIECES)
def test_a_cut_adds_few_tokens(tokenizer: Any, piece: str) -> None:
    """So text that fits is never refused because of the slices, wherever they cut it."""
    encoder = TextEncoder(tokenizer)
    for shift in range(3):
        text = "." * shift + (piece * SLICE_CHARS)[: 3 * SLICE_CHARS]
        tokens = len(tokenizer(text)["input_ids"])
        assert len(encoder.encode(text, tokens, "start.text")) == tokens


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("plain", [False, True])
def test_long_text_is_refused_before_it_is_encoded(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, piece: str, plain: bool
) -> None:
    """At most as much text is encoded as a prompt may have, and the slice after that."""
    seen: list[int] = []

    class Counting:
        """Notes the length of each text that the library encodes."""

        def __init__(self, backend: Tokenizer) -> None:
            self._backend = backend

        def encode_batch_fast(self, texts: list[str], **settings: Any) -> Any:
            seen.extend(map(len, texts))
            return self._backend.encode_batch_fast(texts, **settings)

    encoder = TextEncoder(tokenizer)
    longest = encoder.chars_per_token
    assert longest is not None
    monkeypatch.setattr(encoder, "_backend", Counting(encoder._backend))  # type: ignore[arg-type]
    monkeypatch.setattr(encoder, "_plain", Counting(encoder._plain))  # type: ignore[arg-type]
    encode, most = (encoder.encode_plain if plain else encoder.encode), 2047
    text = (piece * (1 << 20))[: 1 << 20]
    with pytest.raises(PromptTooLongError, match="more than 2047 tokens") as caught:
        encode(text, most, "start.text")
    assert caught.value.details.limit == "2047 tokens"
    assert sum(seen) <= most * longest + 2 * SLICE_CHARS


def test_threads_share_a_tokenizer(tokenizer: Any) -> None:
    """With and without special tokens, and decoding: none changes what another one relies on."""
    encoder, text = TextEncoder(tokenizer), "Hello <|im_start|> there. " * 50
    ids, plain = encoder.encode(text, None, ""), encoder.encode_plain(text, None, "")

    def work(number: int) -> bool:
        if number % 3 == 0:
            return encoder.encode(text, None, "") == ids
        if number % 3 == 1:
            return encoder.encode_plain(text, None, "") == plain
        return "Hello" in encoder.decode(ids)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(300)))


def test_a_tokenizer_in_python_is_counted_too() -> None:
    """Tokenizers that are not of the library `tokenizers` have no bound by characters, but are read in slices."""

    class Letters:
        """One token for each character."""

        def __call__(self, text: str, **settings: Any) -> dict[str, list[int]]:
            assert len(text) <= SLICE_CHARS
            return {"input_ids": [1] * len(text)}

    encoder = TextEncoder(Letters())
    assert encoder.chars_per_token is None
    with pytest.raises(PromptTooLongError):
        encoder.encode("a" * (1 << 20), 2047, "start.text")
