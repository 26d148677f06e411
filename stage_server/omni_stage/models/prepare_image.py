"""Writes what vLLM caches about the installed families' model classes into a directory, while an image is built.

python -m omni_stage.models.prepare_image DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from omni_stage.models.registry import installed_families
from omni_stage.vllm_adapter.checks.model_infos import write_model_infos


def list_architectures() -> frozenset[str]:
    """Returns the families' own architectures, and vLLM's architectures that are common in their checkpoints."""
    families = installed_families().families()
    return frozenset(name for family in families for name in (*family.model_classes, *family.prepared_architectures))


if __name__ == "__main__":
    print("\n".join(write_model_infos(Path(sys.argv[1]), list_architectures())))  # noqa: T201 - the build's log
