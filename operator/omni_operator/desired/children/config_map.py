"""ConfigMap of a stage: its stage file, immutable, with its hash in the name.

A changed file is a new ConfigMap, so during a rollout the old pods keep reading the file that they started with.
"""

from __future__ import annotations

from omni_kube.objects import Manifest
from omni_operator.desired.metadata import build_child
from omni_operator.desired.stage_build import CONFIG_KEY, StageBuild


def build_config_map(build: StageBuild) -> Manifest:
    """Returns the stage's ConfigMap."""
    content = {"immutable": True, "data": {CONFIG_KEY: build.config_text}}
    return build_child("ConfigMap", build.config_map, build.owner, build.labels, content)
