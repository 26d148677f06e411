"""Where a stage finds the checkpoint: in the image, on a claim, or downloaded into a cache by an init container.

file:///PATH        no volume; PATH is in the image
pvc://CLAIM/PATH    the claim at /models, read-only
hf://ORG/NAME       a cache at /models (a claim, else an emptyDir); each component has a directory of its own, since
                    it fetches only the weights that it loads
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from omni_kube.objects import Manifest
from omni_operator.desired.revision import DEFAULT_MODEL_REVISION
from omni_proto.pipeline import OmniPipeline, Stage, gpus_of
from omni_proto.pipeline.types.kubernetes import SecretKeyReference

MODELS_MOUNT: Final = "/models"
MODELS_VOLUME: Final = "models"
CACHE_GIB_PER_GPU: Final = 200
"""Bound of a pod's own cache: no GPU of today holds more weights. A CPU stage counts as one GPU."""


@dataclass(frozen=True, slots=True)
class ModelFetch:
    """A download that has to be done before the stage server starts."""

    uri: str
    revision: str
    component: str
    """Whose weights are fetched."""
    destination: str
    commit_file: str
    """Keeps the commit that the revision meant, so that stages which share a cache never mix two commits."""
    token: SecretKeyReference | None


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The checkpoint of one stage, as its pods see it."""

    path: str
    """Directory of the checkpoint in the stage's container."""
    volume: Manifest | None = None
    """Source of the volume `models`; None if the checkpoint is in the image."""
    fetch: ModelFetch | None = None


def locate_model(pipeline: OmniPipeline, stage: Stage) -> ModelFiles:
    """Where pods of the stage find the checkpoint."""
    model = pipeline.spec.model
    scheme, _, rest = model.uri.partition("://")
    if scheme == "file":
        return ModelFiles(path=rest)
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        # Read-only as a volume too: kubelet then leaves the owner of its files alone.
        source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        return ModelFiles(path=f"{MODELS_MOUNT}/{path}".rstrip("/"), volume=source)
    revision = model.revision or DEFAULT_MODEL_REVISION
    # The prefix keeps a revision named ".." inside, and distinct from the names of organisations.
    root = f"{MODELS_MOUNT}/{rest}/rev-{revision.replace('/', '--')}"
    destination = f"{root}/{stage.component.replace('/', '--')}"
    fetch = ModelFetch(
        uri=model.uri,
        revision=revision,
        component=stage.component,
        destination=destination,
        commit_file=f"{root}/commit.json",
        token=model.token_secret_ref,
    )
    return ModelFiles(path=destination, volume=_cache_volume(pipeline, stage), fetch=fetch)


def _cache_volume(pipeline: OmniPipeline, stage: Stage) -> Manifest:
    cache = pipeline.spec.model.cache
    if cache is not None:
        return {"persistentVolumeClaim": {"claimName": cache.persistent_volume_claim}}
    return {"emptyDir": {"sizeLimit": f"{CACHE_GIB_PER_GPU * max(1, gpus_of(stage))}Gi"}}
