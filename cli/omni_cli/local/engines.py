"""What a local run needs on this machine: an engine for components without one of their own, and the model's files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from omni_proto.pipeline import OmniPipeline
from omni_stage.errors import ConfigurationError
from omni_stage.models.registry import installed_families

IMAGE_CODE: Final = Path("/opt/omnipipeline")
"""Where the stage images have the packages (Dockerfile)."""


def needs_vllm(pipeline: OmniPipeline) -> bool:
    """Returns whether any stage needs vLLM. An unknown component counts as one: its stage reports what is wrong."""
    families = installed_families()
    try:
        return not all((entry := families.find(stage.component)) and entry.engine for stage in pipeline.spec.stages)
    except ConfigurationError:
        return True


def find_model(path: Path) -> Path:
    """Returns the local directory of a file:// uri. Files that images have in their packages are found in the
    installed package."""
    if path.exists() or not path.is_relative_to(IMAGE_CODE):
        return path
    package, *rest = path.relative_to(IMAGE_CODE).parts or ("",)
    found = find_spec(package) if package.isidentifier() else None
    if found is None or found.origin is None:
        return path
    return Path(found.origin).parent.joinpath(*rest)
