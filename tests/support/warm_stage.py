"""What a stage server imports before its engine starts, for support.forks to import once. Starts no thread."""

from __future__ import annotations

import gc

import setproctitle

from omni_stage.vllm_adapter.process.env import apply_environment

apply_environment()
# Processes can be renamed only by who looked at the environment before anything changed it.
setproctitle.getproctitle()
gc.disable()

from omni_stage import __main__ as _server  # noqa: E402, F401
from omni_stage.vllm_adapter.process.template import import_shared  # noqa: E402

import_shared()
gc.freeze()
gc.enable()
