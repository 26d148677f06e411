"""ServiceAccount of a pipeline's pods: a separate identity without a token and without permissions."""

from __future__ import annotations

from omni_kube.objects import Manifest
from omni_operator import names
from omni_operator.desired.build_settings import Owner
from omni_operator.desired.metadata import build_child


def build_service_account(owner: Owner) -> Manifest:
    """Returns the pipeline's ServiceAccount."""
    return build_child(
        "ServiceAccount",
        names.service_account_name(owner.name),
        owner,
        names.child_labels(owner.name),
        {"automountServiceAccountToken": False},
    )
