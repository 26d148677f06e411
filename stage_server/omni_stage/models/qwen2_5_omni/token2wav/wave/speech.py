"""Turns utterances into audio with transformers' token2wav: pack, solve, vocode. With CUDA graphs for fixed sizes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache

import torch
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from omni_stage.models.qwen2_5_omni.checkpoint import Blocks, Voice, read_blocks, read_sound_shape
from omni_stage.models.qwen2_5_omni.manifest import DEFAULT_STEPS
from omni_stage.models.qwen2_5_omni.token2wav.wave.blocks import BlockPack, count_blocks, pack_blocks
from omni_stage.models.qwen2_5_omni.token2wav.wave.solver import (
    advance,
    evaluation_times,
    make_noise,
    time_points,
)
from omni_stage.models.qwen2_5_omni.token2wav.wave.transformer import BlockTransformer, Conditions, VoiceRows
from omni_stage.models.qwen2_5_omni.token2wav.wave.utterance import Utterance
from omni_stage.models.qwen2_5_omni.token2wav.wave.vocoder import vocode
from omni_stage.models.qwen2_5_omni.token2wav.windows import window_blocks
from omni_stage.models.shared.graphs import Capture, CudaCapture, GraphedFunction, next_size

logger = logging.getLogger(__name__)

_KEPT_INTERVALS = 32
"""Maximum number of solver intervals whose modulation is kept. The default number of steps has nine intervals. Each
takes 2 MiB with the published sizes."""
_SHARED_BLOCKS = (4, 8, 12, 16, 24, 32)
"""Numbers of blocks for packs of several windows."""
GRAPH_WINDOWS = (1, 2, 4)
"""Numbers of equally long windows for which the vocoder is captured."""


def graph_blocks(blocks: Blocks) -> tuple[int, ...]:
    """Returns the block counts for which packs are captured, ascending: for one window and for several.

    Other packs are padded to the next larger count. Packs above the largest count run uncaptured, because they have
    enough work to hide the kernel launches.
    """
    return tuple(sorted({*window_blocks(blocks), *_SHARED_BLOCKS}))


class Speech:
    """Turns utterances into audio with a loaded model: pack, solve, vocode."""

    def __init__(self, model: Qwen2_5OmniToken2WavModel, voices: dict[str, Voice], *, use_graphs: bool) -> None:
        self._dit = model.code2wav_dit_model
        self._vocoder = model.code2wav_bigvgan_model
        self.blocks = read_blocks(self._dit.config)
        vocoder = self._vocoder.config
        self.sound = read_sound_shape(self._dit.repeats, vocoder.upsample_rates, vocoder.upsample_kernel_sizes)
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
            frames = blocks * dit.block_size
            pack = pack_blocks([frames], dit.block_size)
            codes = torch.zeros(frames // dit.repeats, dtype=torch.int64)
            conditions = self.transformer.condition(pack, [codes], [voice], [1.0])
            mel = pack.fill([make_noise(0, frames, dit.mel_dim)[0]]).to(device)
            captured += self._advance.warm_up(mel, *interval, *conditions)
        for blocks in reversed(window_blocks(self.blocks)):
            for count in reversed(GRAPH_WINDOWS):
                mel = torch.zeros(count, dit.mel_dim, blocks * dit.block_size, device=device)
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
        """Returns the audio of each mel [frames, bins]. Equally long mels share one forward."""
        by_length: dict[int, list[int]] = {}
        for index, mel in enumerate(mels):
            by_length.setdefault(mel.shape[0], []).append(index)
        audio: dict[int, torch.Tensor] = {}
        for indexes in by_length.values():
            batch = torch.stack([mels[index].T for index in indexes])
            audio |= zip(indexes, self._vocode(batch).float(), strict=True)
        return [audio[index] for index in range(len(mels))]
