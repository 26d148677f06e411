"""Generates the CustomResourceDefinition: `render_crd` returns `manifests/crd/omnipipelines.yaml`."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import yaml

from omni_proto.pipeline.crd.schema import Schema, structural_schema
from omni_proto.pipeline.rules.graph import OBJECT_RULES
from omni_proto.pipeline.types.resource import API_VERSION, KIND, Metadata, OmniPipeline, PipelineSpec
from omni_proto.pipeline.types.status import PipelineStatus

GROUP, VERSION = API_VERSION.split("/")
PLURAL = "omnipipelines"
SHORT_NAME = "omni"

COLUMNS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "Ready",
        "type": "string",
        "description": "Whether clients can connect and are served.",
        "jsonPath": '.status.conditions[?(@.type=="Ready")].status',
    },
    {
        "name": "Reason",
        "type": "string",
        "description": "Why the pipeline is ready or not.",
        "jsonPath": '.status.conditions[?(@.type=="Ready")].reason',
    },
    {
        "name": "Stages",
        "type": "string",
        "description": "Number of ready stages, out of all stages.",
        "jsonPath": ".status.readyStages",
    },
    {
        "name": "URL",
        "type": "string",
        "description": "Where clients inside the cluster connect.",
        "jsonPath": ".status.url",
    },
    {
        "name": "Model",
        "type": "string",
        "description": "The checkpoint that all stages share.",
        "jsonPath": ".spec.model.uri",
        "priority": 1,
    },
    {
        "name": "Suspended",
        "type": "boolean",
        "description": "Whether the pipeline is suspended and runs no pods.",
        "jsonPath": ".spec.suspend",
        "priority": 1,
    },
    {
        "name": "Age",
        "type": "date",
        "description": "Time since the pipeline was created.",
        "jsonPath": ".metadata.creationTimestamp",
    },
)
"""Columns of `kubectl get omni`; those with priority 1 appear only with -o wide."""


@cache
def object_schema() -> Schema:
    """Returns the schema of a whole OmniPipeline. The result is cached: do not change it."""
    return {
        "description": " ".join((OmniPipeline.__doc__ or "").split()),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": f"Version of the API: {API_VERSION}", "type": "string"},
            "kind": {"description": f"Kind of the object: {KIND}", "type": "string"},
            # The name is the only field of metadata that Kubernetes lets a CRD restrict.
            "metadata": {
                "type": "object",
                "properties": {"name": structural_schema(Metadata)["properties"]["name"]},
            },
            "spec": structural_schema(PipelineSpec),
            "status": structural_schema(PipelineStatus),
        },
        "x-kubernetes-validations": [rule.to_schema() for rule in OBJECT_RULES],
    }


def build_crd() -> dict[str, Any]:
    """Returns the CustomResourceDefinition of OmniPipeline."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [dict(column) for column in COLUMNS],
                    "schema": {"openAPIV3Schema": object_schema()},
                }
            ],
        },
    }


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def render_crd() -> str:
    """Returns the manifest of the CRD, as YAML text."""
    header = "# Generated from proto/omni_proto/pipeline by `make schemas`; do not edit.\n"
    return header + yaml.dump(build_crd(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
