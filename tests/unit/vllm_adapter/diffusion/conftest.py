"""A fixture for schedulers of diffusion stages."""

from __future__ import annotations

import pytest

from omni_stage.vllm_adapter.diffusion.scheduler import DiffusionScheduler


@pytest.fixture
def make(make_scheduler):
    """Returns a function that builds a diffusion stage's scheduler: pooling runner, no KV cache, no chunked prefill."""

    def build(settings=None, **kwargs):
        options = {"runner": "pooling", "kv_blocks": 0, "enable_chunked_prefill": False} | kwargs
        return make_scheduler(DiffusionScheduler, additional_config={"omni_diffusion": settings or {}}, **options)

    return build
