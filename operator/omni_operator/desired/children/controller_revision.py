"""ControllerRevision: a revision's spec, kept as long as its pods exist.

The operator has no state of its own. From this object it can repair the children of an old revision during a long
rollout. See docs/adr/0011-controller-revisions.md.
"""

from __future__ import annotations

from omni_kube.objects import Manifest, content_hash
from omni_operator import names
from omni_operator.desired.build_settings import Owner
from omni_operator.desired.metadata import build_child
from omni_operator.desired.revision import dump_spec
from omni_proto.pipeline import OmniPipeline


def build_controller_revision(pipeline: OmniPipeline, revision: str, owner: Owner) -> Manifest:
    """Returns the snapshot of a pipeline whose images are set; its number is the pipeline's generation."""
    spec = dump_spec(pipeline)
    return build_child(
        "ControllerRevision",
        names.snapshot_name(owner.name, revision, content_hash(spec, names.CONTENT_HASH_LENGTH)),
        owner,
        names.child_labels(owner.name, revision=revision),
        {"revision": pipeline.metadata.generation, "data": {"spec": spec}},
    )
