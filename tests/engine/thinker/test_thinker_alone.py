"""A thinker without a talker: prompt embeddings and media in one batch, and the cache of processed media."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from omni_stage.engine.vllm_engine import VllmStageEngine
from omni_stage.models.component import UserPrompt
from omni_stage.payloads import PromptEmbedsPayload
from support.engines.omni_stages import OmniStages, stage_config
from support.engines.one_stage import running
from support.media.samples import make_image
from support.models.reference import ReferencePrompt

pytestmark = pytest.mark.engine

IDS = [5, 9, 17, 40, 41, 42, 43, 8]
CACHE_MIB = 64


def embeddings_of(checkpoint: Path, ids: list[int]) -> torch.Tensor:
    """Returns these tokens' rows of the thinker's embedding table."""
    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            if "thinker.model.embed_tokens.weight" in weights.keys():  # noqa: SIM118 - not a mapping
                return weights.get_tensor("thinker.model.embed_tokens.weight")[ids]
    raise AssertionError("the checkpoint has no embedding table")


async def test_embeddings_and_media(make_tiny_checkpoint: Callable[..., Path]) -> None:
    checkpoint = make_tiny_checkpoint(0, "small")
    settings = {"enable_prompt_embeds": True, "mm_processor_cache_mib": CACHE_MIB}
    config = stage_config("thinker", checkpoint, **settings).model_copy(update={"downstream": []})
    async with running(config) as engine:
        stages = OmniStages({"thinker": engine})
        greedy = {"temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 12, "ignore_eos": True}
        rows = UserPrompt(prompt_embeds=PromptEmbedsPayload.from_tensor(embeddings_of(checkpoint, IDS)))
        image = ReferencePrompt("What do you see?", images=[make_image(2)]).to_user_prompt()
        prompts = {"ids": UserPrompt(token_ids=IDS), "rows": rows, "image": image}
        alone = {name: await stages.ask("thinker", prompt, **greedy) for name, prompt in prompts.items()}
        assert alone["rows"].token_ids == alone["ids"].token_ids
        # In one batch vLLM fills some positions from embeddings, others from images, and others from token ids.
        asked = (stages.ask("thinker", prompt, **greedy) for prompt in prompts.values())
        together = dict(zip(prompts, await asyncio.gather(*asked), strict=True))
        assert {name: got.token_ids for name, got in together.items()} == {
            name: got.token_ids for name, got in alone.items()
        }
        assert isinstance(engine, VllmStageEngine)
        llm: Any = engine._core.llm
        assert llm.model_config.multimodal_config.mm_processor_cache_gb == CACHE_MIB / 1024
        stats = llm._renderer.stat_mm_cache()
        assert (stats.queries, stats.hits) == (2, 1), "the image came twice and was processed once"
