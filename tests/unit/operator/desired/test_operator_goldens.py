"""Golden manifests of the samples. If one changes, the objects in users' clusters change too."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from typer.testing import CliRunner

from omni_cli.commands.render import format_manifests
from omni_cli.main import app
from omni_operator.kinds import key_of
from omni_proto.pipeline import load_pipeline
from omni_proto.pipeline.read.load import StrictLoader
from omni_proto.pipeline.read.offline import load_checked


@pytest.fixture(scope="module")
def script(request: pytest.FixtureRequest) -> ModuleType:
    path = request.config.rootpath / "tools" / "render_goldens.py"
    spec = importlib.util.spec_from_file_location("render_goldens", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_goldens_are_fresh(script: ModuleType) -> None:
    assert script.list_stale() == [], "run `make goldens` and look at the difference"


def test_defaults_that_are_filled_in_change_nothing_but_the_snapshot(script: ModuleType) -> None:
    """A pipeline from the API server has the CRD's defaults, one from a file has none. Only their snapshots differ."""
    for sample in script.SAMPLES.glob("*.yaml"):
        filled, written = (
            {key_of(child): child for child in script.render_children(pipeline, "ns", script.SETTINGS)}
            for pipeline in (load_checked(sample), load_pipeline(sample))
        )
        assert {kind for kind, _ in filled.keys() ^ written.keys()} <= {"ControllerRevision"}
        assert all(filled[key] == written[key] for key in filled.keys() & written.keys())


def test_stale_and_left_over_goldens_are_found(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "GOLDEN", tmp_path / "golden")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    samples = ["qwen25-omni.yaml", "quantized-llm.yaml"]
    wanted = ["golden/digests.sha256", "golden/qwen25-omni.yaml"]
    (tmp_path / "samples").mkdir()
    for name in samples:
        (tmp_path / "samples" / name).write_text((script.SAMPLES / name).read_text())
    monkeypatch.setattr(script, "SAMPLES", tmp_path / "samples")
    assert script.list_stale() == wanted
    assert script.main() == 0
    assert script.list_stale() == []
    (tmp_path / "golden" / "removed.yaml").write_text("")
    for name in wanted:
        (tmp_path / name).write_text("")
    assert script.list_stale() == [*wanted, "golden/removed.yaml"]
    assert script.main() == 0
    assert script.list_stale() == []


class TestRender:
    """The command `omnipipe render`."""

    SAMPLE = "manifests/samples/tiny-omni.yaml"

    def render(self, request: pytest.FixtureRequest, *options: str) -> str:
        result = CliRunner().invoke(app, ["render", str(request.config.rootpath / self.SAMPLE), *options])
        assert result.exit_code == 0, result.output
        return result.stdout

    def test_prints_every_child_and_no_owner(self, request: pytest.FixtureRequest) -> None:
        children = list(yaml.safe_load_all(self.render(request)))
        assert len(children) == 1 + 2 + 1 + 3 * 4
        for child in children:
            assert child["metadata"]["namespace"] == "default"
            assert "ownerReferences" not in child["metadata"]

    def test_namespace_image_and_pod_monitors(self, request: pytest.FixtureRequest) -> None:
        text = self.render(request, "-n", "models", "--image", "registry.example/stage:9", "--pod-monitors")
        children = list(yaml.safe_load_all(text))
        assert {child["metadata"]["namespace"] for child in children} == {"models"}
        images = {
            container["image"]
            for child in children
            if child["kind"] == "Deployment"
            for container in child["spec"]["template"]["spec"]["containers"]
        }
        assert images == {"registry.example/stage:9"}
        assert "PodMonitor" in {child["kind"] for child in children}

    def test_text_of_several_lines_stays_readable_and_there_are_no_aliases(
        self, request: pytest.FixtureRequest
    ) -> None:
        text = self.render(request)
        assert "stage.yaml: |\n" in text
        assert "&id" not in text

    @pytest.mark.parametrize("text", ["69710e2", "0952791", "0o17", "y", "12:30", "2026-11-23", "1_0", "", "=", "aged"])
    def test_kubectl_reads_every_text_as_text(self, text: str) -> None:
        """A revision has seven hexadecimal digits, and some of these are numbers to kubectl, though not to PyYAML."""
        (labels,) = yaml.load_all(format_manifests([{"revision": text}]), Loader=StrictLoader)
        assert labels == {"revision": text}

    def test_a_bad_file_is_an_error(self, tmp_path: Path) -> None:
        file = tmp_path / "bad.yaml"
        file.write_text("kind: OmniPipeline\n")
        result = CliRunner().invoke(app, ["render", str(file)])
        assert result.exit_code == 1
