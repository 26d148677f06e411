"""Keeps the contents of requests out of the log when a step of the engine fails.

Private interface of vLLM 0.32: `EngineCore.log_error_detail` calls `vllm.logging_utils.dump_input`, whose logger then
writes the whole step at level ERROR. For tensors it writes only the shapes, but sampling parameters and media appear
in full: stop strings, grammars, pixels, and the bytes of our payloads. vLLM has no setting to disable this.
"""

from __future__ import annotations

import logging


def disable_dump() -> None:
    """Stop vLLM from logging the step that failed. The exception and its traceback are still logged."""
    logging.getLogger("vllm.logging_utils.dump_input").setLevel(logging.CRITICAL)
