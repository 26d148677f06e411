"""Seeded random weights of the tiny checkpoint, scaled so that text, codes and audio vary and the audio is audible."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from omni_stage.models.shared.tiny import weights as shared


def fill_weights(model: Any, seed: int) -> None:
    """Draw every parameter of a Qwen3OmniMoeForConditionalGeneration from one generator, in place.

    Matrices roughly keep the variance of their input. Norms are near one but not equal to one, so that a missing norm
    changes the result. The scales of code2wav's residual branches are large enough for the branches to matter.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(_shape_draw(name, parameter, drawn))


def end_after_text(model: Any, text_ids: int) -> None:
    """Make the talker end its speech soon after the text. text_ids: number of ids that are not special tokens."""
    talker, embed = model.talker, model.thinker.get_input_embeddings()
    first, others = talker.get_input_embeddings(), talker.code_predictor.get_input_embeddings()

    def run(text: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        inputs = talker.text_projection(embed(text))
        for table in (first, *others):
            maximum = min(table.num_embeddings, talker.code_predictor.config.vocab_size)
            inputs = inputs + table(torch.randint(maximum, text.shape, generator=generator))
        positions = torch.arange(len(text)).expand(3, 1, -1)
        states: torch.Tensor = talker.model(inputs_embeds=inputs[None], position_ids=positions).last_hidden_state[0]
        return states

    head, config = talker.codec_head.weight, talker.config
    shared.end_after_text(head, config.codec_eos_token_id, run, text_ids, model.config.tts_pad_token_id)


def make_audible(code2wav: Any, seed: int) -> None:
    """Scale the last layer so that a trial utterance of random codes peaks at shared.PEAK."""
    generator = torch.Generator().manual_seed(seed)
    config = code2wav.config
    codes = torch.randint(config.codebook_size, (1, config.num_quantizers, 24), generator=generator)
    last = code2wav.decoder[-1].conv
    with torch.no_grad():
        last.bias.zero_()
        last.weight.mul_(shared.PEAK / shared.measure_peak(last, partial(code2wav, codes)))


def _shape_draw(name: str, parameter: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    last = name.rpartition(".")[2]
    if last == "bias":
        return 0.05 * drawn
    if last in ("alpha", "beta"):
        return 0.2 * drawn
    if last in ("scale", "gamma"):
        return 0.5 + 0.1 * drawn
    if parameter.dim() == 1:
        return 1.0 + 0.05 * drawn  # norms
    if "embed" in name and "patch_embed" not in name:
        return (0.7 if "pos_embed" not in name else 0.1) * drawn
    return drawn * _gain(name) / math.sqrt(_fan_in(name, parameter))


def _gain(name: str) -> float:
    if "lm_head" in name or "codec_head" in name:
        return 3.0  # clear maxima: greedy decoding must not depend on rounding
    if "mlp.gate.weight" in name:
        return 2.0  # a router with clear maxima
    if name.startswith("code2wav.decoder."):
        # A dozen stacked residual units must not amplify rounding errors to an audible level.
        return 0.3 if ".conv2." in name else 0.9
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        return 1.3
    return 1.2


def _fan_in(name: str, parameter: torch.Tensor) -> int:
    shape = parameter.shape
    if ".experts." in name:
        return shape[-1]  # [experts, out, in]
    if name.startswith("code2wav.") and len(shape) == 3 and ".block.1." in name:
        return 2 * shape[0]  # a transposed convolution: each output has two taps of every input channel
    if name.startswith("code2wav.upsample.") and name.endswith(".0.conv.weight"):
        return shape[0]
    return max(1, math.prod(shape[1:]))
