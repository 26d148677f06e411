"""Turns utterances into audio with transformers' token2wav: pack, solve, vocode. With CUDA graphs for fixed sizes.

From noise to mel: the request's own noise, the time points, and the Runge-Kutta step between two of them.

transformers' `sample()` draws its noise from the global generator, so concurrent requests would change each other's
audio. With this solver, each request's noise comes from its own seed.

From mel to samples: transformers' BigVGAN modules and weights, with a forward whose result stays on the device.

transformers' forward ends in `.squeeze().cpu()`, which waits for the device and drops a batch dimension of one. The
convolutions pad both ends of their input, so only utterances of equal length may share a forward.
Source: transformers 5.19, models/qwen2_5_omni/modeling_qwen2_5_omni.py, Qwen2_5OmniToken2WavBigVGANModel.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniToken2WavBigVGANModel,
    Qwen2_5OmniToken2WavModel,
)

from omni_stage.models.qwen2_5_omni.checkpoint import Blocks, Voice, read_audio_shape, read_blocks
from omni_stage.models.qwen2_5_omni.manifest import DEFAULT_STEPS
from omni_stage.models.qwen2_5_omni.token2wav.wave.transformer import (
    BlockPack,
    BlockTransformer,
    Conditions,
    VoiceRows,
    count_blocks,
    pack_blocks,
)
from omni_stage.models.qwen2_5_omni.token2wav.wave.utterance import Utterance
from omni_stage.models.qwen2_5_omni.token2wav.windows import window_blocks
from omni_stage.models.shared.graphs import Capture, CudaCapture, GraphedFunction, next_size

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


_SWAY = -1.0
"""Moves the time points towards the start. The default in transformers."""

Velocity = Callable[[int, torch.Tensor], torch.Tensor]
"""(which of the step's evaluations, 0 to 3; value) -> rate of change of the value."""


def make_noise(seed: int, frames: int, mel_bins: int, *, first_frame: int = 0) -> torch.Tensor:
    """Returns float32 [1, frames, mel_bins] on the CPU: torch.randn's values for this seed, from first_frame on.

    torch draws normal numbers in groups of 16. So a frame's noise does not depend on the range of frames if
    (first_frame + frames) x mel_bins is a multiple of 16.
    """
    whole = torch.randn([1, first_frame + frames, mel_bins], generator=torch.Generator().manual_seed(seed))
    return whole[:, first_frame:]


def time_points(count: int, device: torch.device) -> torch.Tensor:
    """Returns float32 [count] from 0 to 1, denser at the start."""
    points = torch.linspace(0, 1, count, device=device, dtype=torch.float32)
    return points + _SWAY * (torch.cos(math.pi / 2 * points) - 1 + points)


def evaluation_times(begin: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Returns float32 [4]: the time points at which a step from `begin` [] to `end` [] evaluates the velocity."""
    step = end - begin
    return torch.stack([begin, begin + step * (1 / 3), begin + step * (2 / 3), end])


def advance(velocity: Velocity, value: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Returns the value after a step of this length []: the fourth-order 3/8 rule, four evaluations."""
    third = step * (1 / 3)
    k1 = velocity(0, value)
    k2 = velocity(1, torch.addcmul(value, k1, third))
    k3 = velocity(2, torch.addcmul(value, torch.sub(k2, k1, alpha=1 / 3), step))
    k4 = velocity(3, torch.addcmul(value, k1 - k2 + k3, step))
    return torch.addcmul(value, torch.add(k1 + k4, k2 + k3, alpha=3), step / 8)


logger = logging.getLogger(__name__)

_KEPT_INTERVALS = 32
"""Maximum number of solver intervals whose modulation is kept. The default number of steps has nine intervals. Each
takes 2 MiB with the published sizes."""
_SHARED_BLOCKS = (4, 8, 12, 16, 24, 32)
"""Numbers of blocks for packs of several windows."""
GRAPH_WINDOWS = (1, 2, 4)
"""Numbers of equally long windows for which the vocoder is captured. With graphs it runs no other number."""


def graph_blocks(blocks: Blocks) -> tuple[int, ...]:
    """Returns the block counts for which packs are captured, ascending: for one window and for several.

    Other packs are padded to the next larger count. Packs above the largest count run uncaptured, because they have
    enough work to hide the kernel launches.
    """
    return tuple(sorted({*window_blocks(blocks), *_SHARED_BLOCKS}))


def split_windows(indexes: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yields the indexes in parts, the largest first, whose numbers are those of GRAPH_WINDOWS."""
    while indexes:
        count = max(size for size in GRAPH_WINDOWS if size <= len(indexes))
        yield indexes[:count]
        indexes = indexes[count:]


class Speech:
    """Turns utterances into audio with a loaded model: pack, solve, vocode."""

    def __init__(self, model: Qwen2_5OmniToken2WavModel, voices: dict[str, Voice], *, use_graphs: bool) -> None:
        self._dit = model.code2wav_dit_model
        self._vocoder = model.code2wav_bigvgan_model
        self.blocks = read_blocks(self._dit.config)
        vocoder = self._vocoder.config
        self.audio_shape = read_audio_shape(self._dit.repeats, vocoder.upsample_rates, vocoder.upsample_kernel_sizes)
        """How many samples a codec token has."""
        self.transformer = BlockTransformer(self._dit)
        self._voices = voices
        self._encoded: dict[str, VoiceRows] = {}
        self._interval = lru_cache(maxsize=_KEPT_INTERVALS)(self._compute_interval)
        device = self.transformer.device
        self.use_capture(CudaCapture(device) if use_graphs and device.type == "cuda" else None)

    def use_capture(self, capture: Capture | None) -> None:
        """Use `capture` from the next warm_up on. With None, everything runs uncaptured."""
        self._has_graphs = capture is not None
        self._advance = GraphedFunction(self._step, capture)
        self._vocode = GraphedFunction(lambda mel: vocode(self._vocoder, mel), capture)

    def prepare(self, utterances: Sequence[Utterance]) -> tuple[BlockPack, Conditions, torch.Tensor]:
        """Returns the pack of the utterances, the transformer's conditions, and the noise to start from.

        The noise is float32 [blocks, frames per block, mel bins] on the device.
        """
        dit = self._dit
        frames = [utterance.codes.shape[0] * dit.repeats for utterance in utterances]
        needed = sum(count_blocks(count, dit.block_size) for count in frames)
        captured = graph_blocks(self.blocks)
        pack = pack_blocks(frames, dit.block_size, next_size(needed, captured) if self._has_graphs else needed)
        conditions = self.transformer.condition(
            pack,
            [utterance.codes for utterance in utterances],
            [self.encode_voice(utterance.voice) for utterance in utterances],
            [utterance.guidance for utterance in utterances] if utterances[0].is_guided else None,
        )
        noise = [
            make_noise(item.seed, count, dit.mel_dim, first_frame=item.first_code * dit.repeats)[0]
            for item, count in zip(utterances, frames, strict=True)
        ]
        return pack, conditions, pack.fill(noise).to(self.transformer.device)

    def speak(self, utterances: Sequence[Utterance]) -> list[torch.Tensor]:
        """Returns the audio of each utterance, float32 [samples] on the device; NaN if its mel is not finite.

        All utterances must have equal batch keys.
        """
        pack, conditions, mel = self.prepare(utterances)
        for index in range(utterances[0].steps - 1):
            mel = self._advance(mel, *self._interval(utterances[0].steps, index), *conditions)
        return self._vocode_all(pack.split(mel))

    def warm_up(self) -> int:
        """Encode every voice, and capture CUDA graphs. Returns how many were captured.

        The largest graphs are captured first, so that the smaller ones reuse their memory.
        """
        for name in self._voices:
            self.encode_voice(name)
        if not self._has_graphs:
            return 0
        dit, device = self._dit, self.transformer.device
        captured = 0
        interval = self._interval(DEFAULT_STEPS, 0)
        voice = self.encode_voice(next(iter(self._voices)))
        for blocks in reversed(graph_blocks(self.blocks)):
            codes = torch.zeros(blocks * self.blocks.codes, dtype=torch.int64)
            # A block may end within a code. Then the codes of so many blocks have fewer frames than the blocks.
            frames = len(codes) * dit.repeats
            pack = pack_blocks([frames], dit.block_size, blocks)
            conditions = self.transformer.condition(pack, [codes], [voice], [1.0])
            mel = pack.fill([make_noise(0, frames, dit.mel_dim)[0]]).to(device)
            captured += self._advance.warm_up(mel, *interval, *conditions)
        for blocks in reversed(window_blocks(self.blocks)):
            for count in reversed(GRAPH_WINDOWS):
                mel = torch.zeros(count, dit.mel_dim, blocks * self.blocks.codes * dit.repeats, device=device)
                captured += self._vocode.warm_up(mel)
        logger.info("token2wav: %d CUDA graphs captured", captured)
        return captured

    def encode_voice(self, name: str) -> VoiceRows:
        """Returns the rows that condition the transformer on a voice. Each voice is encoded once."""
        if name not in self._encoded:
            self._encoded[name] = self.transformer.encode_voice(self._voices[name])
        return self._encoded[name]

    def _compute_interval(self, count: int, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the length [] of an interval between `count` time points, and the modulations of its evaluations.

        The modulations are float32 [4, rows, H], see BlockTransformer.modulate.
        """
        begin, end = time_points(count, self.transformer.device)[index : index + 2]
        return end - begin, self.transformer.modulate(evaluation_times(begin, end))

    def _step(
        self, mel: torch.Tensor, length: torch.Tensor, modulations: torch.Tensor, *tables: torch.Tensor
    ) -> torch.Tensor:
        conditions = Conditions(*tables)
        return advance(
            lambda index, value: self.transformer.velocity(modulations[index], value, conditions), mel, length
        )

    def _vocode_all(self, mels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the audio of each mel [frames, bins]. Equally long mels share a forward."""
        by_length: dict[int, list[int]] = {}
        for index, mel in enumerate(mels):
            by_length.setdefault(mel.shape[0], []).append(index)
        audio: dict[int, torch.Tensor] = {}
        for alike in by_length.values():
            for indexes in split_windows(alike) if self._has_graphs else [alike]:
                batch = torch.stack([mels[index].T for index in indexes])
                audio |= zip(indexes, self._vocode(batch).float(), strict=True)
        return [audio[index] for index in range(len(mels))]
