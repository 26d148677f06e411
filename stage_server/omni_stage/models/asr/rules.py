"""Which tokens Whisper may write next: vLLM's logits processor, in the engine's process.

vLLM 0.32 samples Whisper's tokens without these rules, so its timestamps are not in pairs and the tokens that the
checkpoint suppresses occur. The rules are those of transformers 5.19 (SuppressTokens, SuppressTokensAtBegin and
WhisperTimeStampLogitsProcessor). What applies to a request follows from its prompt's last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from omni_stage.models.asr.vocabulary import WhisperTokens

CONFIG_KEY: Final = "whisper"
"""Key of WhisperTokens.as_config in vLLM's additional_config."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One request of the batch."""

    timed: bool
    """Whether it writes timestamps."""
    names_language: bool
    """Whether it writes only the language."""
    output: Sequence[int]
    """What it has written; vLLM appends to it."""


class WhisperRules(LogitsProcessor):
    """Forbids tokens by setting their logits to -inf."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        """See vLLM's LogitsProcessor."""
        self._tokens = WhisperTokens.from_config(vllm_config.additional_config[CONFIG_KEY])
        self._rows: dict[int, _Row] = {}

        def ids(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(sorted(values), dtype=torch.long, device=device)

        self._suppressed, self._first = ids(self._tokens.suppressed), ids(self._tokens.first_suppressed)
        self._languages = ids([*self._tokens.languages.values()])

    def is_argmax_invariant(self) -> bool:
        """Returns False: the rules change which token is likeliest."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Note the requests that enter, leave and move within the batch."""
        process_dict_updates(self._rows, batch_update, self._open_row)

    def _open_row(self, _: SamplingParams, prompt: list[int] | None, output: list[int]) -> _Row:
        last = prompt[-1] if prompt else self._tokens.no_timestamps
        is_multilingual = bool(self._tokens.languages)
        return _Row(
            timed=last != self._tokens.no_timestamps,
            names_language=is_multilingual and last == self._tokens.start,
            output=output,
        )

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the logits [requests, vocabulary], changed in place."""
        timed = []
        for number, row in self._rows.items():
            scores = logits[number]
            if row.names_language:
                kept = scores[self._languages].clone()
                scores.fill_(-torch.inf)
                scores[self._languages] = kept
                continue
            scores[self._suppressed] = -torch.inf
            if not row.output:
                scores[self._first] = -torch.inf
            if row.timed:
                timed.append(number)
                for begin, end in forbidden_ranges(row.output, self._tokens):
                    scores[begin:end] = -torch.inf
        if timed:
            self._prefer_timestamps(logits, torch.tensor(timed, device=logits.device))
        return logits

    def _prefer_timestamps(self, logits: torch.Tensor, rows: torch.Tensor) -> None:
        """Forbid text where the timestamps together are likelier than the likeliest token of text."""
        first = self._tokens.first_timestamp
        likely = torch.log_softmax(logits[rows].float(), dim=-1)
        prefers = likely[:, first:].logsumexp(dim=-1) > likely[:, :first].max(dim=-1).values
        text = logits[rows, :first]
        logits[rows, :first] = text.masked_fill(prefers[:, None], -torch.inf)


def forbidden_ranges(output: Sequence[int], tokens: WhisperTokens) -> list[tuple[int, int | None]]:
    """Returns ranges of ids (end excluded; None: all further ones) that must not follow what a window has written."""
    first = tokens.first_timestamp
    ranges: list[tuple[int, int | None]] = [(tokens.no_timestamps, first)]
    if not output:
        ranges.append((0, first))
        if tokens.latest_first_timestamp is not None:
            ranges.append((first + tokens.latest_first_timestamp + 1, None))
        return ranges
    closes = output[-1] >= first
    if closes and (len(output) < 2 or output[-2] >= first):
        ranges.append((first, None))  # after a pair, and after the first timestamp, comes text
    elif closes:
        ranges.append((0, tokens.end))  # the second timestamp of a pair, or the end
    latest = next((token_id for token_id in reversed(output) if token_id >= first), None)
    if latest is not None:
        opens = closes and len(output) > 1 and output[-2] < first
        ranges.append((first, latest if opens else latest + 1))  # time does not run backwards
    return ranges
