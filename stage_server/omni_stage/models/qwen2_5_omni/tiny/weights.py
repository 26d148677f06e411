"""Seeded random weights of the tiny checkpoint, scaled so that text, codes and audio vary and the audio is audible."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import nn

from omni_stage.models.shared.tiny import weights as shared


def fill_weights(model: Any, seed: int) -> None:
    """Draw the weights of a Qwen2_5OmniForConditionalGeneration from one generator, in place.

    Matrices roughly keep the variance of their input, norms stay at one, and biases are small. Filters and other
    buffers keep the values that the model's constructor computed.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, module in sorted(model.named_modules()):
            if isinstance(module, nn.Embedding):
                _draw(module.weight, 0.7, generator)
            elif isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d)):
                _draw(module.weight, _gain(name) / math.sqrt(_fan_in(module)), generator)
                if module.bias is not None:
                    _draw(module.bias, 0.05, generator)


def end_after_text(model: Any, text_ids: int) -> None:
    """Make the talker end its speech soon after the text. text_ids: number of ids that are not special tokens."""
    talker, embed = model.talker, model.thinker.get_input_embeddings()
    config = talker.config

    def run(text: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        codes = torch.randint(config.tts_codec_pad_token_id - 1, text.shape, generator=generator)
        inputs = talker.thinker_to_talker_proj(talker.model.embed_tokens(codes) + embed(text))[None]
        positions = torch.arange(len(text)).expand(3, 1, -1)
        states: torch.Tensor = talker.model(inputs_embeds=inputs, position_ids=positions).last_hidden_state[0]
        return states

    head = talker.codec_head.weight
    shared.end_after_text(head, talker.codec_eos_token, run, text_ids, config.tts_text_pad_token_id)


def make_audible(token2wav: Any, speaker: dict[str, Any], audio_codes: int, seed: int) -> None:
    """Scale the vocoder's last layer so that a trial utterance of random codes peaks at shared.PEAK."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(audio_codes, (1, 64), generator=generator)
    last = token2wav.code2wav_bigvgan_model.conv_post
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        last.weight.sub_(last.weight.mean(dim=-1, keepdim=True))  # so that the audio has no constant offset
        spoken = partial(token2wav, codes, conditioning=speaker["cond"], reference_mel=speaker["ref_mel"])
        last.weight.mul_(shared.PEAK / shared.measure_peak(last, spoken))


def make_speaker(bos_token_id: int, dit_config: Any, generator: torch.Generator) -> dict[str, Any]:
    """Returns an entry of spk_dict.pt: start token, speaker [1, enc_emb_dim], reference mel [1, frames, mel_dim]."""
    return {
        "bos_token": bos_token_id,
        "cond": torch.randn(1, dit_config.enc_emb_dim, generator=generator),
        "ref_mel": torch.randn(1, 40, dit_config.mel_dim, generator=generator),
    }


def _draw(tensor: torch.Tensor, std: float, generator: torch.Generator) -> None:
    tensor.copy_(torch.randn(tensor.shape, generator=generator) * std)


def _gain(name: str) -> float:
    if name.endswith(("lm_head", "codec_head")):
        return 3.0  # clear maxima: greedy decoding must not depend on rounding
    if ".layers." in name and name.endswith(("q_proj", "k_proj")):
        return 1.6  # attention that selects positions
    if "bigvgan" in name and ".resblocks." in name:
        return 0.4  # the outputs of eighteen such residual branches add up
    return 1.2


def _fan_in(module: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d) -> int:
    weight = module.weight
    if isinstance(module, nn.ConvTranspose1d):
        # Each output sample depends on kernel/stride taps of every input channel.
        return max(1, weight.shape[0] * weight.shape[2] // module.stride[0])
    return max(1, math.prod(weight.shape[1:]))
