"""What vLLM knows of model classes, prepared while an image is built.

vLLM 0.32 learns what a model class can by importing it in a process of its own (registry._LazyRegisteredModel): ten
seconds and more of a start. It keeps the answer below $VLLM_CACHE_ROOT, with a hash of the model's file; a new pod has
none. So an image brings answers below $OMNI_MODEL_INFOS, and `copy_model_infos` puts them where vLLM looks.

The Dockerfile has them written by `python -m omni_stage.models.prepare_image DIRECTORY`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

MODEL_INFOS = "OMNI_MODEL_INFOS"
"""A cache directory of the image: the prepared answers are in its modelinfos."""
_FOLDER = "modelinfos"


def copy_model_infos(environ: Mapping[str, str] | None = None) -> int:
    """Copy the image's answers to vLLM's cache, as far as it lacks them; how many. Call before vLLM is imported.

    Only where the environment names both. A cache that cannot be written is vLLM's to report: it works without.
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
    """Write the answers for these architectures, as far as vLLM knows them. Returns the names of the files."""
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
        file.chmod(0o644)  # vLLM writes them for itself alone
    return [file.name for file in written]
