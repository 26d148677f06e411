"""Functions that read pod templates. HUB and PVC are specs with an hf:// and a pvc:// model."""

from __future__ import annotations

from typing import Any

from support.operator.operator_pipelines import Spec

HUB: Spec = {"model": {"uri": "hf://org/model", "tokenSecretRef": {"name": "hub", "key": "token"}}}
PVC: Spec = {"model": {"uri": "pvc://models/qwen/omni"}}


def all_containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def env_of(container: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}
