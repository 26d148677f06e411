"""Location of a stage's checkpoint: in the image, on a claim, or downloaded into a cache by an init container.

file:///PATH        no volume; PATH is in the image
pvc://CLAIM/PATH    the claim at /models, read-only
hf://ORG/NAME       a cache at /models (a claim, else an emptyDir); each component has a directory of its own, since
                    it fetches only the weights that it loads; with /FOLDER, one of its own for each folder too
s3:// and others    the same; the uri has a directory whose name begins with _, as no organization's does
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from omni_kube.objects import Manifest
from omni_operator.desired.revision import DEFAULT_MODEL_REVISION
from omni_proto.pipeline import OmniPipeline, Stage, devices_of
from omni_proto.pipeline.types.kubernetes import SecretKeyReference
from omni_proto.pipeline.types.resource import ModelCache

MODELS_MOUNT: Final = "/models"
MODELS_VOLUME: Final = "models"
CACHE_GIB_PER_GPU: Final = 200
"""Size limit, per GPU, of a cache in an emptyDir: more than a B200's memory (192 GB). A CPU stage counts as one GPU."""


@dataclass(frozen=True, slots=True)
class ModelFetch:
    """A download that must complete before the stage server starts."""

    uri: str
    revision: str
    """Empty if the source has none."""
    component: str
    """Component whose weights are downloaded."""
    destination: str
    commit_file: str
    """File with the commit that the revision resolved to, so that stages that share a cache never mix two commits."""
    token: SecretKeyReference | None


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The checkpoint of one stage in its pods."""

    path: str
    """Directory of the checkpoint in the stage's container."""
    volume: Manifest | None = None
    """Source of the volume `models`; None if the checkpoint is in the image."""
    fetch: ModelFetch | None = None


def locate_model(pipeline: OmniPipeline, stage: Stage) -> ModelFiles:
    """Returns the location of the checkpoint in pods of the stage."""
    model = pipeline.model_of(stage)
    scheme, _, rest = model.uri.partition("://")
    if scheme == "file":
        return ModelFiles(path=rest)
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        # The volume is read-only too, not only its mount, so that kubelet does not change the owner of its files.
        source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        return ModelFiles(path=f"{MODELS_MOUNT}/{path}".rstrip("/"), volume=source)
    revision, folder = "", []
    if scheme == "hf":
        revision = model.revision or DEFAULT_MODEL_REVISION
        organization, name, *folder = rest.split("/")
        # Without "rev-", a revision named ".." would leave the model's directory.
        root = f"{MODELS_MOUNT}/{organization}/{name}/rev-{revision.replace('/', '--')}"
    else:
        root = f"{MODELS_MOUNT}/_{scheme}/{_readable(rest)}--{_digest(model.uri)}"
    destination = f"{root}/{stage.component.replace('/', '--')}{_folder_key(folder)}"
    fetch = ModelFetch(
        uri=model.uri,
        revision=revision,
        component=stage.component,
        destination=destination,
        commit_file=f"{root}/commit.json",
        token=model.token_secret_ref,
    )
    return ModelFiles(path=destination, volume=_cache_volume(model.cache, stage), fetch=fetch)


def _folder_key(folder: list[str]) -> str:
    """Returns a suffix of a file's name that no other folder of the repository has."""
    # Nested directories could lie inside those of another stage, and a joined path could exceed a name's 255 bytes.
    return f"--{_digest('/'.join(folder))}" if folder else ""


def _readable(path: str) -> str:
    """Returns the last part of a path as the start of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", path.rpartition("/")[2])[:64]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cache_volume(cache: ModelCache | None, stage: Stage) -> Manifest:
    if cache is not None:
        return {"persistentVolumeClaim": {"claimName": cache.persistent_volume_claim}}
    return {"emptyDir": {"sizeLimit": f"{CACHE_GIB_PER_GPU * max(1, devices_of(stage))}Gi"}}
