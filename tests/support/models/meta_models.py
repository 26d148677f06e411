"""A component's model as vLLM builds it, but on the meta device: real classes and sizes without memory or weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import (
    destroy_distributed_environment,
    destroy_model_parallel,
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype

from omni_stage.engine.arguments.engine_args import build_engine_args
from omni_stage.engine.vllm_engine import vllm_engine_kwargs
from omni_stage.models.component import Component
from omni_stage.models.qwen2_5_omni.checkpoint import read_checkpoint, read_voices
from omni_stage.models.qwen2_5_omni.schemas import find_pace
from omni_stage.models.qwen2_5_omni.thinker.component import (
    Thinker,
    read_audio_limit,
    read_text_ends,
    read_text_sampling,
)
from omni_stage.models.registry import installed_families
from omni_stage.models.shared.media_cost import MediaCosts
from omni_stage.models.shared.prompts import PromptBuilder
from omni_stage.models.shared.thinker import ThinkerSettings
from support.engines.omni_stages import stage_config
from support.models.published import read_added_tokens


class AddedTokens:
    """The special tokens of the published tokenizer, with the only tokenizer method that the thinker needs."""

    def __init__(self) -> None:
        self._tokens = {token_id: token for token, token_id in read_added_tokens().items()}

    def convert_ids_to_tokens(self, token_id: int) -> str | None:
        """Returns the text of a special token; None for other tokens."""
        return self._tokens.get(token_id)


def published_component(stage: str, checkpoint: Path, family: str = "qwen2_5_omni") -> Component:
    """Returns the component that the registry would make if the checkpoint had a tokenizer."""
    if stage != "thinker":
        return installed_families().factory(f"{family}/{stage}")(stage_config(stage, checkpoint, family=family))
    facts = read_checkpoint(checkpoint)
    prompts = PromptBuilder(AddedTokens(), facts, max_audio_samples=read_audio_limit(checkpoint))
    settings = ThinkerSettings(
        feeds=True,
        max_media=4,
        default_sampling=read_text_sampling(checkpoint),
        end_token_ids=read_text_ends(checkpoint, vocab_size=facts.vocab_size, tokenizer_end=None),
        media_costs=MediaCosts(56 * 56, 50_176, 480_000, 28, 640, pads_to_limit=True),
        pace=find_pace(facts, stage_config(stage, checkpoint, family=family), held=1),
        known_voices=tuple(read_voices(checkpoint)),
    )
    component: Any = Thinker(facts, prompts, settings)
    return cast("Component", component)


def create_vllm_config(stage: str, checkpoint: Path, component: Component, **engine_args: Any) -> VllmConfig:
    """Returns vLLM's configuration of the stage's engine, built as the product builds it."""
    args = build_engine_args(
        stage_config(stage, checkpoint, family=component.facts.id.split("/")[0], **engine_args), component, on_cpu=True
    )
    return AsyncEngineArgs(**vllm_engine_kwargs(args, on_cpu=True)).create_engine_config()


@contextmanager
def one_rank(folder: Path) -> Iterator[None]:
    """Sets up torch.distributed with a single process, which vLLM's layers need when they are built."""
    init_distributed_environment(1, 0, (folder / "rendezvous").as_uri(), 0, "gloo")
    try:
        yield
    finally:
        destroy_model_parallel()
        destroy_distributed_environment()


@contextmanager
def meta_model(config: VllmConfig) -> Iterator[nn.Module]:
    """Yields the model of a configuration on the meta device. Load weights inside the block. Needs `one_rank`.

    vLLM 0.32 keeps rotary embeddings for all models of a process in `_ROPE_DICT`. One on the meta device would fail the
    engines that later tests start in this process.
    """
    with patch.dict(rotary_embedding._ROPE_DICT, clear=True), set_current_vllm_config(config):
        ensure_model_parallel_initialized(1, 1)
        with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
            model = initialize_model(vllm_config=config)
        yield model
