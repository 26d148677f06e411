"""The generated text, rows and audio of a paced pipeline, deterministic and equal on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from omni_stage.models.component import TextPart, UserPrompt
from omni_stage.models.sim.manifest import SAMPLE_RATE_HZ, VOICES

VOCABULARY: Final = 152_064
"""Size of the text vocabulary of Qwen2.5-Omni-7B and Qwen3-Omni. `prompt_ids` makes up ids below this."""
END_OF_TEXT: Final = 151_645
_CHARACTERS_PER_TOKEN: Final = 4
_TOKENS_PER_MESSAGE: Final = 5
"""Number of tokens that the published chat templates add to a message for its role and markers."""
_TEXT: Final = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they "
    "which one you were all her she there would their we him been has when who will no more if out so up said "
    "what its about than into them can only other time new some could these two may first then do any like my now "
    "over such our man me even most made after also well did many before must through back years where much your "
    "way down should because long each just state people those too mister how little good world make very year "
    "still see own work men day get here between both life being under three never know same last another while "
    "us off might great go come since against right came take used himself few house use place during high "
    "without again home around small however found part school every think"
)
_WORDS: Final = _TEXT.split()
_BANK: Final = 64
"""Number of different rows. Their values do not matter, as long as they are finite."""
_PITCHES_HZ: Final = dict(zip(VOICES, (196, 330), strict=True))
_SYLLABLES_HZ: Final = 4


def mix(seed: int, position: int) -> int:
    """Returns 64 bits computed from seed and position by splitmix64."""
    value = (seed + 0x9E3779B97F4A7C15 * (position + 1)) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)


def word_id(seed: int, position: int) -> int:
    """Returns the id of the token at a position of a reply. The id is the index of a word."""
    return mix(seed, position) % len(_WORDS)


def word_text(token_id: int, position: int) -> str:
    """Returns a token's text: capitalized at the beginning of a reply, else with a space before it."""
    word = _WORDS[token_id % len(_WORDS)]
    return word.capitalize() if position == 0 else f" {word}"


def reply_length(seed: int, shortest: int, longest: int) -> int:
    """Returns the number of words in a reply whose request sets no length."""
    return shortest + mix(seed, -1) % (longest - shortest + 1)


def prompt_ids(prompt: UserPrompt) -> list[int]:
    """Returns the prompt's own token ids, or made-up ids: one for every four bytes of text, and five per message."""
    if prompt.token_ids is not None:
        return list(prompt.token_ids)
    if prompt.text is not None:
        return _text_ids(prompt.text)
    ids: list[int] = []
    for message in prompt.messages or ():
        text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
        ids += [0] * _TOKENS_PER_MESSAGE + _text_ids(text)
    return ids or [0]


def _text_ids(text: str) -> list[int]:
    data = text.encode()
    pieces = range(0, max(1, len(data)), _CHARACTERS_PER_TOKEN)
    return [int.from_bytes(data[at : at + _CHARACTERS_PER_TOKEN], "little") % VOCABULARY for at in pieces]


class RowBank:
    """Random bfloat16 rows, as uint16 bits."""

    def __init__(self, values: int) -> None:
        """`values`: how many values a row has."""
        drawn = np.random.default_rng(0).standard_normal((_BANK, values), dtype=np.float32)
        # The upper half of a float32 is a bfloat16.
        self._rows: npt.NDArray[np.uint16] = (drawn.view(np.uint32) >> 16).astype(np.uint16)

    def rows(self, token_ids: Sequence[int]) -> npt.NDArray[np.uint16]:
        """Returns the rows [n, values] of tokens. A single row is not copied."""
        if len(token_ids) == 1:
            at = token_ids[0] % _BANK
            return self._rows[at : at + 1]
        return self._rows[np.asarray(token_ids) % _BANK]


class VoiceAudio:
    """A tone with the rhythm of syllables. It repeats every second, without a click."""

    def __init__(self, voice: str) -> None:
        time = np.arange(SAMPLE_RATE_HZ, dtype=np.float64) / SAMPLE_RATE_HZ
        tone = np.sin(2 * np.pi * _PITCHES_HZ[voice] * time) + 0.4 * np.sin(4 * np.pi * _PITCHES_HZ[voice] * time)
        loudness = 0.5 - 0.45 * np.cos(2 * np.pi * _SYLLABLES_HZ * time)
        self._second = (0.3 * tone * loudness).astype(np.float32)

    def samples(self, first: int, count: int) -> npt.NDArray[np.float32]:
        """Returns float32 [count] from sample `first` on."""
        begin = first % SAMPLE_RATE_HZ
        if begin + count <= SAMPLE_RATE_HZ:
            return self._second[begin : begin + count]
        taken: npt.NDArray[np.float32] = np.take(self._second, np.arange(begin, begin + count), mode="wrap")
        return taken
