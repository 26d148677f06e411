"""What every test shares: the environment of vLLM, set before anything imports it, and tiny checkpoints."""

from __future__ import annotations

import os

# vLLM and transformers read these when they are imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
# One test process shares its cores with the engines it starts: waiting threads must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_SHARED = {
    # Session fixtures that take long to start: a control plane, a running pipeline, imports of vLLM.
    "tests/controlplane/test_chart": "",  # "": each file for itself, with a control plane of its own
    "tests/controlplane/test_helm": "",
    "tests/controlplane/test_install": "",
    "tests/controlplane/test_crd": "API server",
    "tests/controlplane/": "control plane",
    "tests/unit/schedulers/": "schedulers",
    "tests/unit/service/": "service",
    "tests/pipeline/test_cli_generate": "tiny pipeline",
    "tests/pipeline/test_foreign_clients": "tiny pipeline",
    "tests/pipeline/test_parity_grpc": "tiny pipeline",
}


def pytest_configure(config: pytest.Config) -> None:
    """Each worker of pytest-xdist picks ports of its own range."""
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        first = 20_000 + 3_000 * (int(worker.removeprefix("gw")) % 4)
        os.environ["OMNIPIPE_PORTS"] = f"{first}-{first + 2_999}"


def group_of(nodeid: str) -> str:
    """Tests of one group run on one worker, in order: those of a file, or of several that share much."""
    group = next((group for prefix, group in _SHARED.items() if nodeid.startswith(prefix)), "")
    return group or nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives groups to workers, in the order of collection: what takes longest comes first."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)


@pytest.fixture(scope="session")
def make_tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """make_tiny_checkpoint(seed, shape) -> directory; each is written once a session."""
    written: dict[tuple[int, str], Path] = {}

    def make(seed: int = 0, shape: str = "small") -> Path:
        if (seed, shape) not in written:
            from omni_stage.models.qwen2_5_omni.tiny import write_tiny_checkpoint

            directory = tmp_path_factory.mktemp(f"tiny-{shape}-{seed}")
            written[seed, shape] = write_tiny_checkpoint(directory, seed=seed, shape=shape)
        return written[seed, shape]

    return make


@pytest.fixture(scope="session")
def tiny_checkpoint(make_tiny_checkpoint: Callable[..., Path]) -> Path:
    """The tiny checkpoint of seed 0 and shape "small"."""
    return make_tiny_checkpoint()
