"""The manifest of Qwen3-Omni."""

from __future__ import annotations

from typing import Final

from omni_stage.models.manifest import FamilyManifest, TinyCheckpoint

_PACKAGE: Final = "omni_stage.models.qwen3_omni"

FAMILY: Final = FamilyManifest(
    name="qwen3_omni",
    components=(),
    tiny_checkpoint=TinyCheckpoint(writer=f"{_PACKAGE}.tiny:write_tiny_checkpoint", shapes=("small", "wide")),
)
