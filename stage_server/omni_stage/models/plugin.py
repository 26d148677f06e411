"""The families' model classes in vLLM: its plugin hook (entry point group vllm.general_plugins) registers them in every
vLLM process. As a program, writes what vLLM caches about them into a directory, while an image is built:

python -m omni_stage.models.plugin DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from omni_stage.models.registry import installed_families
from omni_stage.vllm_adapter.checks.model_infos import write_model_infos
from omni_stage.vllm_adapter.process.env import bind_to_parent
from omni_stage.vllm_adapter.process.start_errors import report_start_errors


def list_model_classes() -> dict[str, str]:
    """Returns the model classes of all families: "module:Class" by architecture. Raises ConfigurationError."""
    return {name: model for family in installed_families().families() for name, model in family.model_classes.items()}


def register() -> None:
    """Register the models by name, so that no model code is imported before it is needed. Idempotent.

    This function is the first of our code that runs in an engine's process. So it also makes the process end when the
    stage server ends, and report the error if the engine does not start.
    """
    from vllm import ModelRegistry

    bind_to_parent()
    report_start_errors()
    known = ModelRegistry.get_supported_archs()
    for architecture, model in list_model_classes().items():
        if architecture not in known:
            ModelRegistry.register_model(architecture, model)


if __name__ == "__main__":
    # Its own architectures, and those of vLLM that are common in its checkpoints, of each family.
    wanted = {
        name for one in installed_families().families() for name in (*one.model_classes, *one.prepared_architectures)
    }
    print("\n".join(write_model_infos(Path(sys.argv[1]), wanted)))  # noqa: T201 - the build's log
