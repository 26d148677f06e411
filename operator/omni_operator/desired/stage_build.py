"""One stage of one revision, with all inputs of the builders of its children."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from omni_kube.objects import content_hash
from omni_operator import names
from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.model_files import ModelFiles
from omni_proto.pipeline import EntryTls, OmniPipeline, Stage, devices_of
from omni_proto.stage_config import StageConfig

CONFIG_KEY: Final = "stage.yaml"
"""Name of the stage file in its ConfigMap, and of the file in the pod."""


@dataclass(frozen=True)  # no slots: cached_property stores config_text in the instance's __dict__
class StageBuild:
    """Input of the builders of a stage's children."""

    pipeline: OmniPipeline
    """The pipeline of that revision, with images set."""
    stage: Stage
    config: StageConfig
    """Content of the stage file, which the stage server reads."""
    revision: str
    owner: Owner
    settings: BuildSettings
    model: ModelFiles
    replicas: int
    """Number of pods to run now: the spec's number, or fewer while the stage is suspended or retired."""

    @property
    def name(self) -> str:
        """Name of the stage's Deployment, Service, PodDisruptionBudget and NetworkPolicy."""
        return names.stage_name(self.owner.name, self.stage.name, self.revision)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the stage's children and pods."""
        role = "inner" if self.stage.inputs else "entry"
        return names.child_labels(self.owner.name, stage=self.stage.name, revision=self.revision, role=role)

    @property
    def selector(self) -> dict[str, str]:
        """Labels that select the stage's pods."""
        return names.stage_selector(self.owner.name, self.stage.name, self.revision)

    @property
    def image(self) -> str:
        """Image of the stage server."""
        return self.stage.image or self.pipeline.spec.defaults.image or self.settings.default_image

    @property
    def devices(self) -> int:
        """GPUs of one pod; 1 for other accelerators."""
        return devices_of(self.stage)

    def setting(self, field: str) -> Any:
        """Returns a pod setting of the stage, else of the pipeline's defaults; None if neither sets it."""
        own = getattr(self.stage, field)
        return own if own is not None else getattr(self.pipeline.spec.defaults, field)

    @property
    def tls(self) -> EntryTls | None:
        """TLS settings of the stage; only the entry stage has them."""
        return None if self.stage.inputs else self.pipeline.spec.entry.tls

    @property
    def collector(self) -> str | None:
        """OpenTelemetry collector to which the stage sends spans; None: it sends none."""
        return self.pipeline.spec.tracing.otlp_endpoint or self.settings.otlp_endpoint

    @cached_property
    def config_text(self) -> str:
        """The stage file."""
        return self.config.to_yaml()

    @property
    def config_hash(self) -> str:
        """Hash of the stage file: part of the ConfigMap's name, and on the pods."""
        return content_hash(self.config_text, names.CONTENT_HASH_LENGTH)

    @property
    def config_map(self) -> str:
        """Name of the stage's ConfigMap."""
        return names.config_map_name(self.owner.name, self.stage.name, self.revision, self.config_hash)
