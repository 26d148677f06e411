"""Runs code2wav's Triton kernels on the CPU, by Triton's interpreter, and prints how far they are from transformers.

Run it as a program with TRITON_INTERPRET=1, which must be set before Triton is imported.
"""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni_stage.models.qwen3_omni.code2wav.decoder import ChunkDecoder
from omni_stage.models.qwen3_omni.code2wav.kernels import FusedOperators
from omni_stage.models.qwen3_omni.code2wav.steps import Chunk, StepRunner


def make_model(**config: Any) -> Qwen3OmniMoeCode2Wav:
    """Returns code2wav with random weights, none of which is without effect."""
    model = Qwen3OmniMoeCode2Wav._from_config(Qwen3OmniMoeCode2WavConfig(**config)).float().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("scale", "gamma", "norm.weight", "layernorm.weight")):
                parameter.uniform_(0.3, 1.0, generator=generator)
            elif parameter.dim() == 1:
                parameter.normal_(0.0, 0.1, generator=generator)
            elif "code_embedding" in name:
                parameter.normal_(generator=generator)
            else:
                parameter.normal_(0.0, parameter[0].numel() ** -0.5, generator=generator)
    return model


@torch.inference_mode()
def main(config: dict[str, Any]) -> dict[str, float]:
    """Returns the largest difference of the audio of two streams' chunks from one forward of transformers, the loudest
    sample, and the largest difference of steps of several sizes from PyTorch's operators."""
    model = make_model(**config)
    reference = copy.deepcopy(model)
    runner = StepRunner(ChunkDecoder(model), model.config.num_quantizers)
    runner.operators = FusedOperators
    lengths = (15, 11)
    generator = torch.Generator().manual_seed(0)
    codes = [
        torch.randint(model.config.codebook_size, (length, model.config.num_quantizers), generator=generator)
        for length in lengths
    ]
    audio: list[list[torch.Tensor]] = [[], []]
    at = [0, 0]
    # The second stream begins while the first one continues.
    for taken in ((1, 0), (2, 2), (1, 1), (8, 8), (3, 0)):
        rows = [row for row in (0, 1) if taken[row]]
        chunks = []
        for row in rows:
            own, first = codes[row], at[row]
            at[row] += taken[row]
            chunks.append(Chunk(own[first : at[row]], f"{row}", first, last=at[row] == lengths[row]))
        for row, samples in zip(rows, runner.run(chunks), strict=True):
            audio[row].append(samples.clone())
    expected = [reference(own.T[None])[0, 0] for own in codes]
    pairs = [(torch.cat(mine), theirs) for mine, theirs in zip(audio, expected, strict=True)]
    return {
        "transformers": max(float((mine - theirs).abs().max()) for mine, theirs in pairs),
        "loudest": max(float(theirs.abs().max()) for theirs in expected),
        "pytorch": max(runner.compare(FusedOperators, streams, frames) for streams, frames in ((1, 1), (3, 2))),
    }


if __name__ == "__main__":
    json.dump(main(json.loads(sys.argv[1])), sys.stdout)
