"""InprocEngineCore's end, with a scripted engine on the process's real EngineThread."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omni_stage.errors import EngineDeadStageError
from omni_stage.vllm_adapter.core import inproc
from omni_stage.vllm_adapter.core.inproc import InprocEngineCore


class ScriptedLLM:
    """An engine whose step may have failed."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.shutdowns = 0

    def has_work(self) -> bool:
        return False

    def shutdown(self) -> None:
        self.error = self.error or EngineDeadStageError("the engine was shut down")
        self.shutdowns += 1


@pytest.mark.parametrize("error", [None, RuntimeError("out of memory")], ids=["idle", "failed"])
async def test_shutdown_frees_an_engine_once_whether_or_not_a_step_failed(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = ScriptedLLM(error)
    monkeypatch.setattr(InprocEngineCore, "_create_config", lambda core: None)
    monkeypatch.setattr(inproc, "InprocOmniLLM", lambda config: llm)
    unused: Any = None
    core = InprocEngineCore(unused)
    await core.start()
    await asyncio.gather(core.shutdown(), core.shutdown())
    assert llm.shutdowns == 1
    assert llm not in core._thread._engines
    assert core.is_dead


async def test_an_engine_that_never_started_can_be_shut_down() -> None:
    unused: Any = None
    await InprocEngineCore(unused).shutdown()
