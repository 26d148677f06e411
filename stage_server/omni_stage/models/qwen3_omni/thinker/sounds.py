"""The thinker's sounds through the audio encoder, each as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import torch


def encode_each(
    encode: Callable[[torch.Tensor, Sequence[int]], Sequence[torch.Tensor]],
    features: torch.Tensor,
    lengths: Sequence[int],
    window: int,
) -> tuple[torch.Tensor, ...]:
    """What the encoder makes of each sound, whatever other sounds come beside it.

    Its convolutions run over windows, padded to the longest window of the call, and have biases: behind a short last
    window the first layer makes values that are not zero, and the next one reads them. A sound of at least one whole
    window is always padded to that window's length. A shorter one is so only beside a longer: it needs a call of its
    own, or its rows would depend on which requests share the step.

    features: [mel bins, frames of all sounds]; lengths: frames of each; window: frames of a window.
    """
    rows: list[torch.Tensor] = []
    begin = 0
    for short, group in groupby(lengths, lambda length: length < window):
        together = list(group)
        for part in [[length] for length in together] if short else [together]:
            end = begin + sum(part)
            rows.extend(encode(features[:, begin:end], part))
            begin = end
    return tuple(rows)
