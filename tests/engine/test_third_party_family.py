"""The model family in examples/tones is installed as a package, found by its entry point and served."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from omni_cli.local.ports import pick_ports
from omni_proto.client import OmniClient, OmniRequestError
from omni_proto.stage_config import StageConfig
from support.docs.example_packages import install_example
from support.processes.stage_processes import StageProcess

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_example("tones", tmp_path_factory.mktemp("site"))


def run(site: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkpoint(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tones"
    run(site, "-m", "omni_cli", "tiny-model", str(directory), "--family", "tones")
    return directory


def test_it_is_known_by_its_entry_point(site: Path) -> None:
    code = (
        "import sys; from omni_stage.models.plugin import list_model_classes;"
        "from omni_stage.models.registry import installed_families;"
        "print('tones/player' in installed_families().ids(), list_model_classes()['ToneModel'], 'torch' in sys.modules)"
    )
    assert run(site, "-c", code).split() == ["True", "tones.model:ToneModel", "False"]


def test_it_is_served(site: Path, checkpoint: Path, tmp_path: Path) -> None:
    (port,) = pick_ports(1)
    config = StageConfig.model_validate(
        {
            "pipeline": "tones",
            "stage": "player",
            "component": "tones/player",
            "model": {"path": str(checkpoint)},
            "outputs": ["Audio"],
            "listen": {"host": "127.0.0.1", "grpcPort": port, "healthPort": 0, "metricsPort": 0},
        }
    )
    tests = str(Path(__file__).parents[1])
    environment = {"PYTHONPATH": os.pathsep.join((str(site), tests))}
    with StageProcess([config], tmp_path, environment=environment).start(), OmniClient(f"127.0.0.1:{port}") as client:
        result = client.run(raw_text="Hello")
        assert result.finished["player"].finish_reason == "stop"
        # 5 tones of 240 samples. A sample has 16 bits.
        assert len(result.audio) == 5 * 240 * 2
        assert any(result.audio)
        with pytest.raises(OmniRequestError, match="num_inference_steps has no meaning for this stage") as caught:
            client.run(raw_text="Hello", sampling={"player": {"num_inference_steps": 4}})
        assert caught.value.field == "start.sampling[player].num_inference_steps"
