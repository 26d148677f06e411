"""vLLM loads a thinker whose decoder is quantized by AWQ or GPTQ. It computes with the dequantized weights.

On the CPU, this uses vLLM's own 4-bit kernel, which needs AVX-512. On a processor without it, the stage must refuse the
checkpoint. The GPU kernels (Marlin, Exllama) are not tested here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from omni_stage.errors import ConfigurationError
from omni_stage.vllm_adapter.cpu_workers import has_four_bit_kernel
from support.engines.omni_stages import run_omni_stages
from support.models.quantized import AWQ_CONFIG, GPTQ_CONFIG, write_quantized
from support.models.reference import ReferenceModel, ReferencePrompt, ReferenceSettings

pytestmark = pytest.mark.engine

PROMPT = ReferencePrompt("Tell me what the weather is like.")
TOKENS = 6
LAYOUTS = {"awq": AWQ_CONFIG, "awq without a list": {**AWQ_CONFIG, "modules_to_not_convert": None}, "gptq": GPTQ_CONFIG}
ROWS_TOLERANCE = 2e-2
"""Relative to the rows' standard deviation: float16 activations compared with float32."""


@pytest.mark.parametrize(
    "layout",
    [
        # The same kernels and packing as "awq without a list", whose modules_to_not_convert is null.
        pytest.param("awq", marks=pytest.mark.full),
        "awq without a list",
        "gptq",
    ],
)
async def test_rows_are_those_of_the_weights_that_are_meant(
    make_tiny_checkpoint: Callable[..., Path], tmp_path: Path, layout: str
) -> None:
    dense, directory = make_tiny_checkpoint(0, "small"), tmp_path / "quantized"
    meanings = write_quantized(dense, directory, LAYOUTS[layout])
    reference = ReferenceModel(dense)
    parameters = dict(reference.model.named_parameters())
    assert len(meanings) == 14
    with torch.no_grad():
        for name, meaning in meanings.items():
            assert not torch.equal(parameters[name], meaning)
            parameters[name].copy_(meaning)
    if not has_four_bit_kernel():
        with pytest.raises(ConfigurationError, match="AVX-512"):
            async with run_omni_stages(directory, "thinker"):
                pass
        return
    expected = reference.run(PROMPT, ReferenceSettings(thinker_tokens=TOKENS, talker_tokens=1))
    async with run_omni_stages(directory, "thinker") as stages:
        thinker = await stages.ask("thinker", PROMPT.to_user_prompt(), temperature=0.0, max_tokens=TOKENS)
    assert thinker.prompt_token_ids == expected.prompt_token_ids
    prompt = slice(len(expected.prompt_token_ids))
    difference = (thinker.tensors["x"][prompt].float() - expected.rows[prompt]).abs().max()
    assert difference / expected.rows[prompt].std() < ROWS_TOLERANCE
    assert thinker.token_ids[0] == expected.thinker_token_ids[0]
