"""vLLM's cached facts about model classes, prepared while an image is built.

vLLM 0.32 finds a model class's abilities by importing it in a separate process (registry._LazyRegisteredModel), which
takes ten seconds or more at start-up. It caches the result below $VLLM_CACHE_ROOT, with a hash of the model's file. A
new pod's cache is empty, so the image holds results below $OMNI_MODEL_INFOS, which `copy_model_infos` copies into it.

The Dockerfile runs `python -m omni_stage.models.plugin DIRECTORY` to write them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

MODEL_INFOS = "OMNI_MODEL_INFOS"
"""A cache directory of the image: its folder modelinfos holds the prepared results."""
_FOLDER = "modelinfos"


def copy_model_infos(environ: Mapping[str, str] | None = None) -> int:
    """Copy the image's results into vLLM's cache, where they are missing. Returns how many. Call this before importing
    vLLM.

    Does nothing unless the environment names both folders. A cache that cannot be written is not an error: vLLM reports
    it and works without it.
    """
    variables = os.environ if environ is None else environ
    source, cache = variables.get(MODEL_INFOS), variables.get("VLLM_CACHE_ROOT")
    if not source or not cache:
        return 0
    target = Path(cache) / _FOLDER
    copied = 0
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted((Path(source) / _FOLDER).glob("*.json")):
            if not (target / file.name).exists():
                shutil.copyfile(file, target / file.name)
                copied += 1
    except OSError:
        return copied
    return copied


def write_model_infos(directory: Path, architectures: Collection[str]) -> list[str]:
    """Write the results for each of the architectures that vLLM knows. Returns the names of the files."""
    os.environ["VLLM_CACHE_ROOT"] = str(directory)
    from vllm.model_executor.models.registry import ModelRegistry, _LazyRegisteredModel, _ModelInfo
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    for architecture, model in ModelRegistry.models.items():
        if not isinstance(model, _LazyRegisteredModel):
            continue
        if architecture in architectures:
            info = _ModelInfo.from_model_cls(model.load_model_cls())
            source = Path(sys.modules[model.module_name].__file__ or "")
            model._save_modelinfo_to_cache(info, model._get_modelinfo_module_hash(source))
    written = sorted((directory / _FOLDER).iterdir())
    for file in written:
        file.chmod(0o644)  # vLLM makes them readable only by their owner
    return [file.name for file in written]
