"""How many bytes of UTF-8 one token can stand for: the bound of the rows of a stage that publishes text. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

_SPACE: Final = "\u2581"
"""SentencePiece's space."""
_LONGEST_CHARACTER: Final = 4


def bytes_per_token(vocabulary: Iterable[str]) -> int:
    """Returns the maximum number of bytes of text that one token adds.

    `vocabulary`: all tokens as the tokenizer's files spell them, added tokens included. A byte that is no part of a
    character becomes the replacement character, which has three bytes.
    """
    tokens = sorted(set(vocabulary), key=len, reverse=True)
    table = _byte_level()
    is_byte_level = set(map(chr, table)) <= set(tokens)
    longest = 1
    for token in tokens:
        if _LONGEST_CHARACTER * len(token) + 1 <= longest:
            break
        longest = max(longest, _measure_bytes(token.translate(table)) if is_byte_level else _measure_pieces(token))
    return longest


def _measure_bytes(token: str) -> int:
    try:
        data = token.encode("latin-1")
    except UnicodeEncodeError:
        return len(token.encode("utf-8", "replace"))  # an added token, which is spelled as it is
    # Each byte that is no part of a character here becomes a surrogate, which also takes three bytes.
    return len(data.decode("utf-8", "surrogateescape").encode("utf-8", "surrogatepass"))


def _measure_pieces(token: str) -> int:
    # A tokenizer that works with words may put a space before each.
    return len(token.replace(_SPACE, " ").encode("utf-8", "replace")) + 1


@cache
def _byte_level() -> dict[int, int]:
    """Returns the byte of each letter of a byte-level vocabulary (GPT-2's alphabet)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: byte for byte in shown} | {256 + number: byte for number, byte in enumerate(hidden)}
