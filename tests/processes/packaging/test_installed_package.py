"""`pip install omnipipeline`: the wheel and the sdist work in virtual environments with nothing else."""

from __future__ import annotations

import io
import subprocess
import sys
import wave
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import omnipipeline
from support.docs.doc_examples import python_blocks
from support.peers.answering_entry import PCM_PIECES, WORDS, serve_entry
from support.processes.bare_venv import ROOT, build_distributions, make_venv, run_bare

PAGE = ROOT / "docs" / "client.md"
EXAMPLES = python_blocks(PAGE)
PACKAGES = ("omni_cli", "omni_gateway", "omni_kube", "omni_operator", "omni_proto", "omni_stage", "omnipipeline")
SAMPLE = str(ROOT / "manifests" / "samples" / "qwen25-omni.yaml")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build_distributions(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def bare(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a virtual environment with the wheel, without extras."""
    return make_venv(tmp_path_factory.mktemp("bare") / "venv", str(distributions[1]))


@pytest.fixture(scope="module")
def with_cli(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a virtual environment with the sdist and the extra `cli`."""
    return make_venv(tmp_path_factory.mktemp("cli") / "venv", f"omnipipeline[cli] @ {distributions[0].as_uri()}")


@pytest.fixture(scope="module")
def entry() -> Iterator[int]:
    with serve_entry() as (port, _):
        yield port


def test_every_package_says_that_it_is_typed(distributions: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(distributions[1]).namelist())
    assert {name.partition("/")[0] for name in names if name.endswith(".py")} == set(PACKAGES)
    assert names >= {f"{package}/py.typed" for package in PACKAGES}
    assert "omni_proto/stage/v1/stage_service.proto" in names, "other languages make their stubs from it"


def test_the_example_of_a_model_family_is_built(tmp_path: Path) -> None:
    _, wheel = build_distributions(tmp_path, ROOT / "examples" / "tones")
    with zipfile.ZipFile(wheel) as archive:
        assert "tones/manifest.py" in archive.namelist()
        (entry_points,) = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
        assert b"tones = tones.manifest:FAMILY" in archive.read(entry_points)


def test_the_public_names_are_there_and_load_no_more_than_they_need(bare: Path, tmp_path: Path) -> None:
    program = (
        "import sys, omnipipeline as o; o.OmniClient, o.user\n"
        "print([m for m in ('pydantic', 'yaml', 'numpy') if m in sys.modules])\n"
        "print([name for name in o.__all__ if getattr(o, name) is None], o.__version__)\n"
    )
    done = run_bare([str(bare / "python"), "-c", program], tmp_path)
    assert done.stdout.splitlines() == ["[]", f"[] {omnipipeline.__version__}"], done.stderr


def test_the_command_without_its_extra_names_it(bare: Path, tmp_path: Path) -> None:
    done = run_bare([str(bare / "omnipipe"), "--help"], tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "error: No module named 'typer'; install the command's packages: pip install 'omnipipeline[cli]'\n"
    )


def test_validation_without_its_extra_names_it(bare: Path, tmp_path: Path) -> None:
    done = run_bare([str(bare / "python"), "-c", "import omnipipeline; omnipipeline.validate_pipeline('x')"], tmp_path)
    assert done.stderr.endswith("the rules need a CEL library: pip install 'omnipipeline[cli]'\n")


@pytest.mark.parametrize("heading", EXAMPLES)
def test_the_examples_of_the_page_run(heading: str, bare: Path, with_cli: Path, entry: int, tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "cat.png")
    (tmp_path / "question.wav").write_bytes(_silence())
    (tmp_path / "manifests").symlink_to(ROOT / "manifests")
    program = EXAMPLES[heading].replace("localhost:50051", f"127.0.0.1:{entry}")
    python = (with_cli if "validate_pipeline" in program else bare) / "python"
    done = run_bare([str(python), "-c", program], tmp_path)
    assert done.returncode == 0, done.stderr
    assert EXPECTED[heading] in done.stdout


EXPECTED = {
    "A whole answer": "".join(WORDS),
    "A streamed answer": "".join(WORDS) + "\n".join(f"{len(piece)} bytes of audio at 24000 Hz" for piece in PCM_PIECES),
    "With asyncio": "Hello there Hello there\nHello there",
    "Prompts": "".join(WORDS),
    "Sampling": "".join(WORDS),
    "Errors": "StatusCode.INVALID_ARGUMENT INVALID_REQUEST talker",
    "Pipeline files": "hf://Qwen/Qwen2.5-Omni-7B",
}

COMMANDS = {
    "version": (["--version"], 0, f"omnipipe {omnipipeline.__version__}\n"),
    "validate": (["validate", SAMPLE], 0, "OK: qwen25-omni, 3 stages"),
    "render": (["render", SAMPLE], 0, "kind: Deployment"),
    "status": (["status", "omni", "--kubeconfig", "missing"], 1, "error: cannot find a cluster: "),
    "run": (["run", SAMPLE], 1, "no engine is installed: pip install 'omnipipeline[cpu]' or 'omnipipeline[gpu]'"),
    "tiny-model": (["tiny-model", "x"], 1, "no engine is installed"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_commands_of_the_extra(case: str, with_cli: Path, tmp_path: Path) -> None:
    arguments, code, words = COMMANDS[case]
    done = run_bare([str(with_cli / "omnipipe"), *arguments], tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_request_of_the_command(with_cli: Path, entry: int, tmp_path: Path) -> None:
    arguments = [
        "generate",
        "--endpoint",
        f"127.0.0.1:{entry}",
        "--text",
        "Hi",
        "--out",
        "a.wav",
        "--timeline",
        "a.png",
    ]
    done = run_bare([str(with_cli / "omnipipe"), *arguments], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(WORDS) + "\n"
    assert (tmp_path / "a.wav").is_file()


def test_a_wrong_argument_is_a_type_error(bare: Path, tmp_path: Path) -> None:
    """mypy reads the installed package's types, so a misspelt argument is a type error."""
    program = 'from omnipipeline import OmniClient\nOmniClient("a:1").run(text="Hi", sede=7)\n'
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--python-executable", str(bare / "python"), "--cache-dir", "cache"]
    done = subprocess.run([*command, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'Unexpected keyword argument "sede" for "run" of "OmniClient"' in done.stdout, done.stdout + done.stderr


def _silence() -> bytes:
    """Returns a WAV file with 10 ms of silence."""
    file = io.BytesIO()
    with wave.open(file, "wb") as audio:
        audio.setnchannels(1)
        audio.setsampwidth(2)
        audio.setframerate(16_000)
        audio.writeframes(bytes(320))
    return file.getvalue()
