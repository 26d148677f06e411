"""From mel to samples: transformers' BigVGAN modules and weights, with a forward that ends on the device.

transformers' forward ends in `.squeeze().cpu()`, which waits for the device and drops the batch's dimension where it is
one. Its convolutions pad at both ends of their input: only utterances of equal length may share a forward.
Source: transformers 5.19, models/qwen2_5_omni/modeling_qwen2_5_omni.py, Qwen2_5OmniToken2WavBigVGANModel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavBigVGANModel

_FLOOR_DB = -115.0
_REFERENCE_DB = 20.0


def vocode(vocoder: Qwen2_5OmniToken2WavBigVGANModel, mel: torch.Tensor) -> torch.Tensor:
    """float32 [N, samples] in [-1, 1] of mel [N, bins, frames], all on the device.

    An utterance whose mel is not finite becomes NaN throughout: the clamps on the way would turn minus infinity into
    silence and infinity into a full-scale constant, and nobody would know.
    """
    with _same_sums_every_time():
        return _vocode(vocoder, mel)


@contextmanager
def _same_sums_every_time() -> Iterator[None]:
    """Meanwhile cuDNN takes only kernels that add in a fixed order.

    Otherwise its transposed convolutions differ from run to run, by 3e-4 with TF32 on an H100: a request's audio would
    not be what its seed says, and no graph could be held against the function that it captured. On the same GPU the
    fixed order takes as long (72 codes: 41 against 48 ms; 4,096: 0.63 s both).
    """
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def _vocode(vocoder: Qwen2_5OmniToken2WavBigVGANModel, mel: torch.Tensor) -> torch.Tensor:
    hidden = vocoder.conv_pre(normalize(mel))
    for index, upsample in enumerate(vocoder.ups):
        hidden = upsample[0](hidden)
        first = index * vocoder.num_residual_blocks
        blocks = vocoder.resblocks[first : first + vocoder.num_residual_blocks]
        hidden = sum(block(hidden) for block in blocks) / vocoder.num_residual_blocks
    samples = vocoder.conv_post(vocoder.activation_post(hidden)).clamp(-1.0, 1.0)
    # 0, or NaN.
    verdict = (mel * 0).sum(dim=(1, 2))
    return (samples + verdict[:, None, None]).flatten(1)


def normalize(mel: torch.Tensor) -> torch.Tensor:
    """The mel as the vocoder hears it, in [-1, 1]: process_mel_spectrogram, without its constant made on the host."""
    floor = math.exp(_FLOOR_DB / 20 * math.log(10))
    decibels = 20 * torch.log10(torch.exp(mel).clamp(min=floor)) - _REFERENCE_DB
    return (2 * ((decibels - _FLOOR_DB) / -_FLOOR_DB) - 1).clamp(-1.0, 1.0)
