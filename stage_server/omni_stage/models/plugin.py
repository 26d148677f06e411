"""vLLM's plugin hook (entry point group vllm.general_plugins): registers our model classes in every vLLM process."""

from __future__ import annotations

from omni_stage.models.registry import installed_families
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
