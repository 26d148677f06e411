"""The audio encoder of each family: a clip's rows do not depend on the other clips in the same call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.models.qwen2_5_omni_thinker import Qwen2_5OmniAudioFeatureInputs
from vllm.model_executor.models.qwen3_omni_moe_thinker import Qwen3OmniMoeAudioEncoder

from omni_stage.models.qwen2_5_omni.thinker.model import ThinkerModel as Qwen25Thinker
from omni_stage.models.qwen3_omni.thinker.model import ThinkerModel as Qwen3Thinker
from support.models.meta_models import one_rank

pytestmark = pytest.mark.engine

TOLERANCE = 1e-5
LENGTHS = (30, 250, 70, 100, 8, 99)
"""Lengths of the clips in frames. The encoder's window has 100 frames in Qwen3-Omni and 200 in Qwen2.5-Omni."""
ENCODERS = {
    "qwen2_5_omni": (Qwen25Thinker, Qwen2_5OmniAudioEncoder),
    "qwen3_omni": (Qwen3Thinker, Qwen3OmniMoeAudioEncoder),
}


@pytest.fixture(params=ENCODERS)
def thinker(request: pytest.FixtureRequest, make_tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Iterator[Any]:
    """A thinker with only its audio encoder, which has random weights."""
    thinker_class, encoder_class = ENCODERS[request.param]
    config = AutoConfig.from_pretrained(make_tiny_checkpoint(0, "small", request.param))
    thinker: Any = thinker_class.__new__(thinker_class)
    nn.Module.__init__(thinker)
    with one_rank(tmp_path), set_current_vllm_config(VllmConfig()), torch.inference_mode():
        ensure_model_parallel_initialized(1, 1)
        thinker.audio_tower = encoder_class(config.thinker_config.audio_config).eval()
        generator = torch.Generator().manual_seed(0)
        for parameter in thinker.audio_tower.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        for layer in thinker.audio_tower.modules():
            if isinstance(layer, LinearBase):
                layer.quant_method.process_weights_after_loading(layer)
        yield thinker


def encode(thinker: Any, features: torch.Tensor, lengths: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(
        thinker._process_audio_input(
            Qwen2_5OmniAudioFeatureInputs(
                type="audio_features",
                input_features=features,
                audio_feature_lengths=torch.tensor(lengths),
                validate=False,
            )
        )
    )


def test_audio_has_the_same_rows_alone_and_beside_others(thinker: Any) -> None:
    bins = thinker.audio_tower.num_mel_bins
    features = torch.randn(bins, sum(LENGTHS), generator=torch.Generator().manual_seed(1))
    borders = [sum(LENGTHS[:count]) for count in range(len(LENGTHS) + 1)]
    alone = [encode(thinker, features[:, begin:end], (end - begin,)) for begin, end in pairwise(borders)]
    together = encode(thinker, features, LENGTHS)
    assert len(together) == len(LENGTHS)
    for (mine,), rows in zip(alone, together, strict=True):
        assert mine.shape == rows.shape
        assert mine.std() > 0.01
        torch.testing.assert_close(rows, mine, atol=TOLERANCE, rtol=1e-4)
