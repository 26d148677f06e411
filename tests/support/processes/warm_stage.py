"""Imports everything that a stage server imports before its engine starts, once for all forks. Starts no thread."""

from __future__ import annotations

import gc

import setproctitle

from omni_stage.vllm_adapter.process.env import apply_environment

apply_environment()
# setproctitle must find the original environment, or forks cannot rename themselves later.
setproctitle.getproctitle()
gc.disable()

from omni_stage import __main__ as _server  # noqa: E402, F401
from omni_stage.vllm_adapter.process.template import import_shared  # noqa: E402

import_shared()
gc.freeze()
gc.enable()
