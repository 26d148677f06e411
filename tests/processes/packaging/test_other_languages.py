"""Go and TypeScript clients call a stage, with stubs that the commands of docs/client.md generate."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.release.build import build_packages

from support.docs.doc_examples import blocks_of
from support.peers.answering_entry import WORDS, serve_entry
from support.processes.bare_venv import ROOT, make_venv, run_bare

CLIENTS = ROOT / "tests" / "data" / "clients"
PAGE = [block.commands for block in blocks_of(ROOT / "docs" / "client.md") if block.language == "console"]
((FIND_PROTOS,), GO, TYPESCRIPT) = PAGE
pytestmark = pytest.mark.full  # needs compilers and a package registry


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a virtual environment with the packages that the page needs: ours and grpcio-tools."""
    folder = tmp_path_factory.mktemp("protoc")
    wheel, _ = build_packages(folder, ["omnipipeline"])
    return make_venv(folder / "venv", str(wheel), "grpcio-tools")


@pytest.fixture(scope="module")
def entry() -> Iterator[str]:
    with serve_entry() as (port, _):
        yield f"127.0.0.1:{port}"


def shell(script: list[str], folder: Path, python: Path) -> str:
    path = f"{python}:{folder}/bin:{_path()}"
    done = run_bare(["sh", "-euc", "\n".join(script)], folder, PATH=path, GOBIN=f"{folder}/bin", GOFLAGS="-mod=mod")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_go(python: Path, entry: str, tmp_path: Path) -> None:
    shutil.copytree(CLIENTS / "go", tmp_path, dirs_exist_ok=True)
    said = shell([FIND_PROTOS, *GO, f"go run . {entry}"], tmp_path, python)
    assert said.endswith("".join(WORDS))


def test_typescript(python: Path, entry: str, tmp_path: Path) -> None:
    shutil.copytree(CLIENTS / "typescript", tmp_path, dirs_exist_ok=True)
    install = "npm install --no-audit --no-fund --loglevel=error"
    build = "node_modules/.bin/tsc --strict --esModuleInterop --target es2022 --module commonjs --outDir out client.ts"
    said = shell([install, FIND_PROTOS, *TYPESCRIPT[1:], build, f"node out/client.js {entry}"], tmp_path, python)
    assert said.endswith("".join(WORDS))


def _path() -> str:
    return ":".join(str(Path(found).parent) for name in ("go", "node", "sh") if (found := shutil.which(name)))
