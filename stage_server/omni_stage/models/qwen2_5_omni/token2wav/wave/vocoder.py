"""From mel to samples: transformers' BigVGAN modules and weights, with a forward whose result stays on the device.

transformers' forward ends in `.squeeze().cpu()`, which waits for the device and drops a batch dimension of one. The
convolutions pad both ends of their input, so only utterances of equal length may share a forward.
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
    """Returns audio float32 [N, samples] in [-1, 1] from mel [N, bins, frames], all on the device.

    If an utterance's mel is not finite, all its samples become NaN. Without the NaN, the clamps in the forward would
    hide the error: minus infinity would become silence, and infinity a full-scale constant.
    """
    with _same_sums_every_time():
        return _vocode(vocoder, mel)


@contextmanager
def _same_sums_every_time() -> Iterator[None]:
    """Make cuDNN use only kernels that add in a fixed order, within this context.

    Otherwise the results of its transposed convolutions differ from run to run, by 3e-4 with TF32 on an H100. Then a
    seed would not reproduce a request's audio, and a graph could not be compared with the function that it captured. On
    the same GPU the fixed order is not slower (72 codes: 41 ms instead of 48; 4,096 codes: 0.63 s either way).
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
    # 0 for a finite mel, else NaN.
    verdict = (mel * 0).sum(dim=(1, 2))
    return (samples + verdict[:, None, None]).flatten(1)


def normalize(mel: torch.Tensor) -> torch.Tensor:
    """Returns the vocoder's input: the mel scaled to [-1, 1].

    Computes the same as transformers' process_mel_spectrogram, but without copying a constant from the host.
    """
    floor = math.exp(_FLOOR_DB / 20 * math.log(10))
    decibels = 20 * torch.log10(torch.exp(mel).clamp(min=floor)) - _REFERENCE_DB
    return (2 * ((decibels - _FLOOR_DB) / -_FLOOR_DB) - 1).clamp(-1.0, 1.0)
