"""manifests/tiny runs the tiny sample in a cluster without GPUs. Its files agree with the sample and each other."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_cli.commands.render import render_children
from omni_operator.desired.build_settings import BuildSettings
from omni_operator.desired.pod_settings import USER_ID
from omni_proto.pipeline.read.offline import load_checked
from omni_stage.models.qwen2_5_omni.tiny import write_tiny_checkpoint
from support.operator.network_policies import matches_selector

ROOT = Path(__file__).parents[3]
TINY = ROOT / "manifests" / "tiny"


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    """The objects of model.yaml by kind."""
    return {item["kind"]: item for item in yaml.safe_load_all((TINY / "model.yaml").read_text())}


def test_the_pipeline_is_the_sample_with_another_image_and_model() -> None:
    pipeline = load_checked(TINY / "pipeline.yaml").model_dump()
    sample = load_checked(ROOT / "manifests" / "samples" / "tiny-omni.yaml").model_dump()
    for part in (pipeline, sample):
        del part["spec"]["model"], part["spec"]["defaults"]
    assert pipeline == sample


def test_the_job_writes_where_the_pipeline_reads(model: dict[str, Any]) -> None:
    pipeline = load_checked(TINY / "pipeline.yaml")
    claim = model["PersistentVolumeClaim"]["metadata"]["name"]
    pod = model["Job"]["spec"]["template"]["spec"]
    (volume,) = [item for item in pod["volumes"] if "persistentVolumeClaim" in item]
    assert volume["persistentVolumeClaim"]["claimName"] == claim
    (container,) = pod["containers"]
    (mount,) = [item for item in container["volumeMounts"] if item["name"] == volume["name"]]
    folder = pipeline.spec.model.uri.removeprefix(f"pvc://{claim}/")
    assert f'"{mount["mountPath"]}/{folder}"' in container["args"][0]
    assert container["image"] == pipeline.spec.defaults.image
    # The Job writes as the user that the stages run as.
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == USER_ID


def test_the_stages_run_on_the_node_that_holds_the_volume(model: dict[str, Any]) -> None:
    """Only one node at a time can use a ReadWriteOnce volume, so every stage's pod needs the node of the others."""
    assert model["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    children = render_children(load_checked(TINY / "pipeline.yaml"), "any", BuildSettings(default_image="stage"))
    templates = [child["spec"]["template"] for child in children if child["kind"] == "Deployment"]
    assert len(templates) == 3
    for template in templates:
        (term,) = template["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        # The first pod can be scheduled only because it matches its own affinity term.
        assert all(matches_selector(term["labelSelector"], each["metadata"]["labels"]) for each in templates)


def test_the_jobs_script_writes_the_checkpoint(model: dict[str, Any], tmp_path: Path) -> None:
    (script,) = model["Job"]["spec"]["template"]["spec"]["containers"][0]["args"]
    script = script.replace("/models/", f"{tmp_path}/")
    file = tmp_path / "script.py"
    file.write_text(script)
    runpy.run_path(str(file), run_name="__main__")
    file.unlink()
    written = {path.relative_to(tmp_path / "tiny-omni"): path.read_bytes() for path in tmp_path.rglob("*.*")}
    expected = write_tiny_checkpoint(tmp_path / "expected")
    assert written == {path.relative_to(expected): path.read_bytes() for path in expected.rglob("*.*")}
