"""A checkpoint's tokenizer and chat template, and how many bytes of UTF-8 one of its tokens can stand for: the bound of
the rows of a stage that publishes text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

from omni_stage.errors import ConfigurationError

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


def load_tokenizer(path: Path) -> Any:
    """Returns the tokenizer in the checkpoint directory. Reads only local files and runs no code from the checkpoint.

    Raises ConfigurationError.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigurationError(
            f"no tokenizer can be loaded from model.path {path} ({type(error).__name__}); "
            "the checkpoint must hold its tokenizer files",
            field="model.path",
        ) from error


def read_chat_template(path: Path) -> str | None:
    """Returns the template in chat_template.json, where older processors stored it; None if there is none."""
    try:
        template = json.loads((path / "chat_template.json").read_text(encoding="utf-8"))["chat_template"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return template if isinstance(template, str) else None
