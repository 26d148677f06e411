"""Checks what a local run needs on this machine: whether vLLM must be installed, and where the model's files are."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from omni_proto.pipeline import OmniPipeline
from omni_stage.errors import ConfigurationError
from omni_stage.models.registry import installed_families

IMAGE_CODE: Final = Path("/opt/omnipipeline")
"""Directory of the packages in the stage images (see the Dockerfile)."""


def needs_vllm(pipeline: OmniPipeline) -> bool:
    """Returns whether any stage needs vLLM, because its component has no engine of its own.

    A stage with an unknown component counts as one that needs vLLM; it reports the problem when it starts.
    """
    families = installed_families()
    try:
        return not all((entry := families.find(stage.component)) and entry.engine for stage in pipeline.spec.stages)
    except ConfigurationError:
        return True


def find_model(path: Path) -> Path:
    """Returns the local directory for the path of a file:// uri.

    A path inside IMAGE_CODE, which exists only in the stage images, is mapped to the installed package.
    """
    if path.exists() or not path.is_relative_to(IMAGE_CODE):
        return path
    package, *rest = path.relative_to(IMAGE_CODE).parts or ("",)
    found = find_spec(package) if package.isidentifier() else None
    if found is None or found.origin is None:
        return path
    return Path(found.origin).parent.joinpath(*rest)
