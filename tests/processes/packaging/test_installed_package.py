"""`pip install omnipipeline`: what a release would upload works in virtual environments with nothing else."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tomllib
import wave
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from tools.release.build import build_packages, check_packages
from tools.release.distributions import DISTRIBUTIONS, Distribution

import omnipipeline
from omni_cli.__main__ import remedy_for
from support.docs.doc_examples import python_blocks
from support.peers.answering_entry import PCM_PIECES, WORDS, serve_entry
from support.processes.bare_venv import ROOT, build_distributions, make_venv, run_bare

PAGE = ROOT / "docs" / "client.md"
EXAMPLES = python_blocks(PAGE)
SAMPLE = str(ROOT / "manifests" / "samples" / "qwen25-omni.yaml")
SIM = str(ROOT / "manifests" / "samples" / "sim-omni.yaml")
LIST_PLUGINS = "import importlib.metadata as m; print([e.value for e in m.entry_points(group='vllm.general_plugins')])"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel of every distribution."""
    folder = tmp_path_factory.mktemp("dist")
    build_packages(folder)
    return folder


def wheel_of(distributions: Path, name: str) -> Path:
    (wheel,) = distributions.glob(f"{name.replace('-', '_')}-*.whl")
    return wheel


@pytest.fixture(scope="module")
def bare(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a virtual environment with the client's wheel, without extras."""
    return make_venv(tmp_path_factory.mktemp("bare") / "venv", str(wheel_of(distributions, "omnipipeline")))


@pytest.fixture(scope="module")
def with_cli(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a virtual environment with the extra `cli`, from the sdists."""
    (client,) = distributions.glob("omnipipeline-*.tar.gz")
    (cli,) = distributions.glob("omnipipeline_cli-*.tar.gz")
    folder = tmp_path_factory.mktemp("cli") / "venv"
    return make_venv(folder, f"omnipipeline[cli] @ {client.as_uri()}", f"omnipipeline-cli @ {cli.as_uri()}")


@pytest.fixture(scope="module")
def with_all(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a virtual environment with every part, but no engine, as the index would resolve it."""
    extras = "cli,cluster,timeline,gateway,operator,stage"
    folder = tmp_path_factory.mktemp("all") / "venv"
    return make_venv(folder, "--find-links", str(distributions), f"omnipipeline[{extras}]=={omnipipeline.__version__}")


@pytest.fixture(scope="module")
def entry() -> Iterator[int]:
    with serve_entry() as (port, _):
        yield port


def test_the_index_would_take_the_files(distributions: Path) -> None:
    """twine renders the READMEs, and check-wheel-contents reads the wheels."""
    check_packages([*distributions.glob("*.whl"), *distributions.glob("*.tar.gz")])


def list_tracked(folder: str) -> Iterator[str]:
    """Yields the files of a folder that git knows. A link to a folder stands for its files."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    for file in listed.stdout.splitlines():
        linked = (ROOT / file).resolve().relative_to(ROOT).as_posix()
        if (ROOT / file).is_dir():
            yield from (f"{file}{name.removeprefix(linked)}" for name in list_tracked(linked))
        else:
            yield file


@pytest.mark.parametrize("one", DISTRIBUTIONS, ids=lambda one: one.name)
def test_each_wheel_has_its_packages_and_says_that_they_are_typed(one: Distribution, distributions: Path) -> None:
    with zipfile.ZipFile(wheel_of(distributions, one.name)) as wheel:
        names = set(wheel.namelist())
    packages = {Path(package).name for package in one.packages}
    assert {name.partition("/")[0] for name in names if name.endswith(".py")} == packages
    assert names >= {f"{package}/py.typed" for package in packages}
    expected = {file.partition("/")[2] for package in one.packages for file in list_tracked(package)}
    assert expected == {name for name in names if ".dist-info/" not in name}


def test_every_module_belongs_to_one_distribution() -> None:
    released = [package for one in DISTRIBUTIONS for package in one.packages]
    with (ROOT / "pyproject.toml").open("rb") as file:
        built = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(released) == sorted(built)


def test_a_command_names_the_extra_of_each_part() -> None:
    parts = [Path(package).name for one in DISTRIBUTIONS for package in one.packages]
    missing_parts = {part for part in parts if "pip install" not in remedy_for(part)}
    assert missing_parts == {"omni_cli", "omni_proto", "omnipipeline"}, "what the command itself is or needs"


def test_only_the_stage_server_brings_a_plugin_for_vllm(
    bare: Path, with_cli: Path, with_all: Path, tmp_path: Path
) -> None:
    said = [run_bare([str(bin / "python"), "-c", LIST_PLUGINS], tmp_path).stdout for bin in (bare, with_cli, with_all)]
    assert said == ["[]\n", "[]\n", "['omni_stage.models.plugin:register']\n"]


@pytest.mark.parametrize("program", ["omni_operator", "omni_gateway", "omni_stage"])
def test_the_programs_start_without_the_checkout(program: str, with_all: Path, tmp_path: Path) -> None:
    done = run_bare([str(with_all / "python"), "-m", program, "--help"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout


def test_a_pipeline_of_installed_stages_answers(with_all: Path, tmp_path: Path) -> None:
    """`omnipipe run` starts the stage servers and the gateway of the wheels; `omnipipe generate` asks them."""
    program = (
        "import json, pathlib, subprocess, sys, time, urllib.request\n"
        f"run = subprocess.Popen(['omnipipe', 'run', {SIM!r}, '--http', '0', '--address-file', 'at.json'])\n"
        "while run.poll() is None and not pathlib.Path('at.json').exists(): time.sleep(0.1)\n"
        "at = json.loads(pathlib.Path('at.json').read_text())\n"
        "done = subprocess.run(['omnipipe', 'generate', '--text', 'Hi', '--out', 'a.wav', '--timeline', 'a.png'],\n"
        "    env={**__import__('os').environ, 'OMNIPIPE_ENDPOINT': at['endpoint']}, capture_output=True, text=True)\n"
        "print(done.returncode, len(done.stdout) > 1, done.stderr, at)\n"
        "run.terminate(); run.wait()\n"
    )
    path = f"{with_all}:{os.environ['PATH']}"
    done = run_bare([str(with_all / "python"), "-c", program], tmp_path, PATH=path)
    assert "0 True" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "a.wav").stat().st_size > 10_000
    assert (tmp_path / "a.png").is_file()


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


def missing(module: str, extra: str) -> str:
    return f"error: No module named '{module}'; install what this command needs: pip install 'omnipipeline[{extra}]'"


COMMANDS = {
    "version": (["--version"], 0, f"omnipipe {omnipipeline.__version__}\n"),
    "validate": (["validate", SAMPLE], 0, "OK: qwen25-omni, 3 stages"),
    "render": (["render", SAMPLE], 1, missing("omni_kube", "operator")),
    "status": (["status", "omni", "--kubeconfig", "missing"], 1, missing("kubernetes", "cluster")),
    "run": (["run", SAMPLE], 1, missing("omni_stage", "stage") + "; [cpu] and [gpu] also bring an engine"),
    "gateway": (["gateway", "--endpoint", "a=grpc://127.0.0.1:1"], 1, "pip install 'omnipipeline[gateway]'"),
    "tiny-model": (["tiny-model", "x"], 1, "no engine is installed"),
}
"""What the command says where only the extra `cli` is installed."""
FULL_COMMANDS = {
    "render": (["render", SAMPLE], 0, "kind: Deployment"),
    "run": (["run", SAMPLE], 1, "no engine is installed: pip install 'omnipipeline[cpu]' or 'omnipipeline[gpu]'"),
    "status": (["status", "omni", "--kubeconfig", "missing"], 1, "error: cannot find a cluster: "),
}
"""What it says where everything is."""


@pytest.mark.parametrize("case", COMMANDS)
def test_commands_of_the_extra(case: str, with_cli: Path, tmp_path: Path) -> None:
    arguments, code, words = COMMANDS[case]
    done = run_bare([str(with_cli / "omnipipe"), *arguments], tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("case", FULL_COMMANDS)
def test_commands_of_other_extras(case: str, with_all: Path, tmp_path: Path) -> None:
    arguments, code, words = FULL_COMMANDS[case]
    done = run_bare([str(with_all / "omnipipe"), *arguments], tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr


def test_a_request_of_the_command(with_cli: Path, entry: int, tmp_path: Path) -> None:
    arguments = ["generate", "--endpoint", f"127.0.0.1:{entry}", "--text", "Hi", "--out", "a.wav"]
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
