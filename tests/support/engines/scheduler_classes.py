"""The scheduler classes of autoregressive stages."""

from __future__ import annotations

import pytest

from omni_stage.vllm_adapter.scheduling.scheduler import OmniAsyncScheduler, OmniScheduler

BOTH = pytest.mark.parametrize("scheduler_class", [OmniScheduler, OmniAsyncScheduler])
