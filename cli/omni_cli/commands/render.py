"""`omnipipe render`: prints the objects that the operator would create, without a cluster.

The operator's own builders make them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import yaml

from omni_kube.objects import Manifest
from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.children import build_revision_set, build_shared
from omni_operator.desired.revision import compute_revision
from omni_operator.rollout.replicas import first_replicas
from omni_proto.pipeline import OmniPipeline
from omni_proto.pipeline.read.load import StrictLoader

_TEXT: Final = "tag:yaml.org,2002:str"
_KUBECTL: Final = StrictLoader("")


def render_children(pipeline: OmniPipeline, namespace: str, settings: BuildSettings) -> list[Manifest]:
    """Returns every child of the pipeline, with the values that they have once its first revision serves.

    The children have no ownerReference, because there is no live owner.
    """
    owner = Owner(pipeline.metadata.name, namespace)
    revision = compute_revision(pipeline, settings.default_image)
    return [
        *build_shared(owner, serving=revision, tls=pipeline.spec.entry.tls is not None, entry=pipeline.spec.entry),
        *build_revision_set(pipeline, revision, first_replicas(pipeline), owner, settings),
    ]


def format_manifests(manifests: Iterable[Manifest], *, compact: bool = False) -> str:
    """Returns the manifests as YAML documents. Text of several lines becomes a literal block.

    compact: the innermost maps and lists are in flow style, such as {cpu: 1, memory: 2Gi}.
    """
    return yaml.dump_all(
        manifests,
        Dumper=_ManifestDumper,
        sort_keys=False,
        allow_unicode=True,
        width=120,
        explicit_start=True,
        default_flow_style=None if compact else False,
    )


class _ManifestDumper(yaml.SafeDumper):
    """Writes text of several lines as literal blocks. Writes no aliases, because kubectl's users do not expect them."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML leaves text such as 69710e2 without quotes, which kubectl then reads as a number.
    tag = _KUBECTL.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return dumper.represent_scalar(_TEXT, text, style="|" if "\n" in text else None if tag == _TEXT else "'")


_ManifestDumper.add_representer(str, _represent_text)
