"""Which of a checkpoint's tensors a component reads, so that its pod fetches no shard that it does not need.

Known without importing a component: the download runs before, and apart from, any engine.
"""

from __future__ import annotations

_PREFIXES: dict[str, tuple[str, ...]] = {
    "qwen2_5_omni/thinker": ("thinker.",),
    # The talker reads a few rows of the thinker's embedding: the start, end and padding of the text.
    "qwen2_5_omni/talker": ("talker.", "thinker.model.embed_tokens."),
    "qwen2_5_omni/token2wav": ("token2wav.",),
}


def weight_prefixes(component_id: str) -> tuple[str, ...]:
    """Prefixes of the names of the tensors that the component reads; empty means all of them."""
    return _PREFIXES.get(component_id, ())
