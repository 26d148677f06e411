"""In which form a checkpoint's chat template reads messages.

Interface of vLLM 0.32 used here, which is not documented for other programs:
- `_detect_content_format` (renderers/hf.py): whether a template loops over the parts of a message. vLLM's API server
  renders chats accordingly. vLLM caches the answer for each template.
"""

from __future__ import annotations

from vllm.renderers.hf import _detect_content_format


def reads_parts(template: str) -> bool:
    """Returns whether the template reads the content of a message as a list of parts, not as one text."""
    return _detect_content_format(template, default="string") == "openai"
