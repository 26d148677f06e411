"""Text on an edge: the rows of a text, characters that arrive in parts, and the bound of the bytes of a token."""

from __future__ import annotations

import numpy as np
import pytest

from omni_proto.tensors import UTF8
from omni_stage.errors import InvalidTensorError
from omni_stage.models.component import EngineStep, StageStep
from omni_stage.models.shared.text.edge import TextPublisher, TextReader, read_text, text_rows
from omni_stage.models.shared.text.tokenizer import bytes_per_token
from support.models.generic_checkpoint import train_tokenizer

TEXTS = ["Hello.", "Größe: 3,5 €", "你好 世界。", "مرحبا", "👩‍👩‍👧 ok 🇩🇪", "a\x00b\n"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_read_as_it_was_written(text: str) -> None:
    rows = text_rows(text)
    assert rows[UTF8].dtype == np.uint8
    assert rows[UTF8].shape == (len(text.encode()),)
    assert read_text(rows) == text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_characters_in_parts_are_put_together(text: str, size: int) -> None:
    data, reader, read = np.frombuffer(text.encode(), np.uint8), TextReader(), []
    for begin in range(0, len(data), size):
        read.append(reader.read({UTF8: data[begin : begin + size]}, ended=False))
    read.append(reader.read({}, ended=True))
    assert "".join(read) == text


@pytest.mark.parametrize("data", [b"\xff", b"ab\xe4\xbd", b"\xed\xa0\x80"])
def test_other_bytes_are_an_invalid_tensor(data: bytes) -> None:
    with pytest.raises(InvalidTensorError, match="not UTF-8"):
        read_text({UTF8: np.frombuffer(data, np.uint8)})


def test_no_text_has_no_rows() -> None:
    assert text_rows("") == {}
    assert read_text({}) == ""


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    assert read_text(text_rows("a\ud83db")) == "a?b"


def test_a_publisher_publishes_what_the_client_gets() -> None:
    class Visible:
        def emit(self, step: EngineStep) -> StageStep:
            made = StageStep.of(step)
            made.text = step.text.removeprefix("<think>")
            return made

    made = TextPublisher(Visible()).emit(EngineStep(text="<think>Hi", token_ids=[1, 2]))
    assert read_text(made.tensors) == made.text == "Hi"


@pytest.mark.parametrize(
    ("vocabulary", "longest"),
    [
        pytest.param(["a", "<|endoftext|>"], 14, id="pieces, and a space before a word"),
        pytest.param(["▁▁▁▁", "你"], 5, id="spaces of SentencePiece"),
        pytest.param(["👩"], 5, id="a character of four bytes"),
        pytest.param([], 1, id="no token"),
    ],
)
def test_bytes_of_pieces(vocabulary: list[str], longest: int) -> None:
    assert bytes_per_token(vocabulary) == longest


def test_bytes_of_a_byte_level_vocabulary() -> None:
    tokenizer = train_tokenizer()
    vocabulary = [*tokenizer.get_vocab()]
    bound = bytes_per_token(vocabulary)
    assert bound == len("<|endoftext|>")
    for ids in ([i] for i in tokenizer.get_vocab().values()):
        assert len(tokenizer.decode(ids).encode()) <= bound
    assert bytes_per_token([*vocabulary, "Ġ" * 20]) == 20, "spaces"
    assert bytes_per_token([*vocabulary, "ä½ł" * 5]) == 15, "Chinese characters, spelled as bytes"
    assert bytes_per_token([*vocabulary, "½" * 5]) == 15, "bytes that are no character become replacement characters"
