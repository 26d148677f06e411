"""The special tokens of a Whisper checkpoint, and the prompts that are made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from omni_stage.errors import ConfigurationError
from omni_stage.models.asr.windows import TICK_S, WINDOW_S
from omni_stage.models.shared.config_file import read_config, read_if_there

RATE_HZ: Final = 16_000
_HOP: Final = round(RATE_HZ * TICK_S / 2)
"""Samples of one column of features. The encoder joins two columns."""
FRAMES: Final = round(WINDOW_S / TICK_S)
"""Positions of the encoder, which reads a window in one step."""
TASKS: Final = ("transcribe", "translate")
_LANGUAGE: Final = re.compile(r"<\|([a-z]{2,3})\|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperTokens:
    """Ids of a checkpoint's special tokens, and what must not be sampled."""

    end: int
    """Ends the text. Ids below it are text."""
    start: int
    previous: int | None
    """Precedes the text of the prompt."""
    no_timestamps: int
    """Timestamps follow it."""
    tasks: Mapping[str, int]
    languages: Mapping[str, int]
    """Ids by code (en); empty, as are the tasks, if the checkpoint knows English only."""
    suppressed: tuple[int, ...]
    first_suppressed: tuple[int, ...]
    """Must not be sampled as the first token."""
    latest_first_timestamp: int | None
    """Index of the latest timestamp with which a window may begin."""
    positions: int
    """Longest sequence of the decoder."""

    @property
    def first_timestamp(self) -> int:
        """Id of 0.00 seconds."""
        return self.no_timestamps + 1

    @property
    def most_previous(self) -> int:
        """Maximum number of tokens of the prompt's text."""
        return self.positions // 2 - 1

    def prompt(self, language: int | None, task: str, previous: Sequence[int], *, timed: bool) -> list[int]:
        """Returns the tokens after which the model writes. `previous`: tokens of the prompt's text."""
        before = [self.previous, *previous[-self.most_previous :]] if previous and self.previous is not None else []
        told = [] if language is None else [language, self.tasks[task]]
        return [*before, self.start, *told, *([] if timed else [self.no_timestamps])]

    def language_of(self, token_id: int | None) -> str:
        """Returns the code of a language's token; "en" if the checkpoint knows English only, empty if not known."""
        if not self.languages:
            return "en"
        return next((code for code, known in self.languages.items() if known == token_id), "")

    def as_config(self) -> dict[str, Any]:
        """Returns what `from_config` reads: plain data, for the engine's process."""
        return asdict(self)

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> WhisperTokens:
        """Returns the tokens that `as_config` returned, after any trip through JSON."""
        lists = {name: tuple(values[name]) for name in ("suppressed", "first_suppressed")}
        return cls(**{**values, **lists})


def check_numbers(config: Mapping[str, Any], extractor: Mapping[str, Any]) -> None:
    """Raises ConfigurationError if the model hears other windows than asr/whisper cuts, or reads other features than
    its extractor writes. `config`: config.json; `extractor`: preprocessor_config.json, perhaps empty."""
    bins = config.get("num_mel_bins", 80)
    served = {
        "preprocessor_config.json: sampling_rate": (extractor.get("sampling_rate", RATE_HZ), RATE_HZ),
        "preprocessor_config.json: chunk_length": (extractor.get("chunk_length", WINDOW_S), WINDOW_S),
        "preprocessor_config.json: hop_length": (extractor.get("hop_length", _HOP), _HOP),
        "preprocessor_config.json: feature_size": (extractor.get("feature_size", bins), bins),
        "config.json: max_source_positions": (config.get("max_source_positions", FRAMES), FRAMES),
    }
    for name, (found, wanted) in served.items():
        if found != wanted:
            raise ConfigurationError(
                f"{name} is {str(found)[:32]}; asr/whisper serves {wanted}: windows of {WINDOW_S:g} s at {RATE_HZ} Hz, "
                "and as many features as config.json says",
                field="model.path",
            )


def read_tokens(path: Path, vocabulary: Mapping[str, int]) -> WhisperTokens:
    """Returns the special tokens of the checkpoint in `path`. `vocabulary`: its tokenizer's ids by token.

    Raises ConfigurationError if this is no Whisper checkpoint.
    """
    config, generation = read_config(path), read_if_there(path / "generation_config.json")
    if config.get("model_type") != "whisper":
        raise ConfigurationError(
            f"model.path {path} holds a model of type {config.get('model_type')!r}; asr/whisper serves Whisper "
            "checkpoints in transformers' format",
            field="model.path",
        )
    check_numbers(config, read_if_there(path / "preprocessor_config.json"))

    def find(token: str) -> int:
        if token not in vocabulary:
            raise ConfigurationError(
                f"the tokenizer in {path} has no {token}; it is not the tokenizer of Whisper", field="model.path"
            )
        return int(vocabulary[token])

    start = find("<|startoftranscript|>")
    is_multilingual = generation.get("is_multilingual", config.get("vocab_size", 0) >= 51_865)
    tasks = {task: find(f"<|{task}|>") for task in TASKS} if is_multilingual else {}
    # The languages' ids follow the start, and the tasks' follow them.
    languages = {
        match[1]: int(number)
        for token, number in vocabulary.items()
        if (match := _LANGUAGE.fullmatch(token)) and tasks and start < number < min(tasks.values())
    }

    def listed(name: str) -> tuple[int, ...]:
        return tuple(generation.get(name) or config.get(name) or ())

    return WhisperTokens(
        end=find("<|endoftext|>"),
        start=start,
        previous=vocabulary.get("<|startofprev|>"),
        no_timestamps=find("<|notimestamps|>"),
        tasks=tasks,
        languages=languages,
        suppressed=listed("suppress_tokens"),
        first_suppressed=listed("begin_suppress_tokens"),
        latest_first_timestamp=generation.get("max_initial_timestamp_index"),
        positions=int(config.get("max_target_positions", 448)),
    )
