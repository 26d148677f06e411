"""Adapts random weights of tiny checkpoints, so that text is legible, speech ends and audio is audible."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import torch

_TRIALS: Final = 24
_POSITIONS: Final = 40
_EAGERNESS: Final = 0.85
"""How likely the end is at each position after the text. At 1 it is about as likely as all codes together."""

PEAK: Final = 0.6
"""Largest absolute sample of a trial utterance after scaling; full scale is 1."""


def keep_rows(weight: torch.Tensor, rows: Collection[int]) -> None:
    """Zero all other rows of an output layer's weight: those tokens are never the most likely ones.

    With the rows of legible tokens, greedy replies are legible; with those of audio codes, every code has audio.
    """
    with torch.no_grad():
        keep = torch.zeros(weight.shape[0], 1)
        keep[sorted(rows)] = 1.0
        weight.mul_(keep)


def measure_peak(layer: torch.nn.Module, speak: Callable[[], Any]) -> float:
    """Returns the largest absolute value that the layer gives while `speak` runs; before a clamp or tanh after it."""
    peaks: list[float] = []
    hook = layer.register_forward_hook(lambda *call: peaks.append(call[2].abs().max().item()))
    with torch.no_grad():
        speak()
    hook.remove()
    return max(peaks[0], 1e-9)


def end_after_text(
    head: torch.Tensor,
    end_id: int,
    run: Callable[[torch.Tensor, torch.Generator], torch.Tensor],
    text_ids: int,
    pad_id: int,
) -> None:
    """Set the row of `head` [vocabulary, hidden] that gives the end of speech, so that it wins soon after the text.

    A talker with random weights would speak to its maximum length, whatever the text. run: returns the hidden states
    [n, hidden] for the ids of n text tokens and random codes. text_ids: number of ids that a text may have. pad_id: the
    text token that is read once the text has ended.
    """
    generator = torch.Generator().manual_seed(1)
    spoken, ended = [], []
    with torch.no_grad():
        for _ in range(_TRIALS):
            length = int(torch.randint(20, 80, (1,), generator=generator))
            text = torch.randint(text_ids, (length,), generator=generator)
            states = run(torch.cat([text, torch.full((_POSITIONS,), pad_id)]), generator)
            spoken.append(states[:length])
            ended.append(states[length:])
        before, after = torch.cat(spoken), torch.cat(ended)
        direction = torch.nn.functional.normalize(after.mean(0) - before.mean(0), dim=0)
        head[end_id] = 0.0
        code = (after @ head.T).max(1).values.mean()
        head[end_id] = direction * (_EAGERNESS * code / (after @ direction).mean())
