"""The command line: help, arguments and exit codes.

tests/processes/cli/test_cli_supervisor.py and tests/pipeline test the commands that start stages.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from omni_cli.commands import demo
from omni_cli.commands.chat import prompt_lines
from omni_cli.commands.generate import InputFileError, read_prompt
from omni_cli.commands.tiny_model import MARKER
from omni_cli.main import app
from support.processes.polling import PATIENCE_S

SAMPLES = sorted((Path(__file__).parents[3] / "manifests" / "samples").glob("*.yaml"))
COMMANDS = ("run", "generate", "validate", "plan", "status", "tiny-model", "demo")


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    status, out, _ = invoke(command, "--help")
    assert status == 0
    assert "Example" in out
    assert f"omnipipe {command} " in out


def test_help_lists_the_commands_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from omni_cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'vllm', 'grpc', 'matplotlib', 'numpy', 'kopf'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert result.returncode == 0, result.stderr
    for command in COMMANDS:
        assert command in result.stdout


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_validate_accepts_the_samples(path: Path) -> None:
    status, out, _ = invoke("validate", str(path))
    assert status == 0
    assert out.startswith(f"OK: {path.stem}, ")


def test_validate_warns_of_a_component_that_is_not_built_in(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    sample = next(path for path in SAMPLES if path.stem == "generic-llm")
    file.write_text(sample.read_text().replace("generic/llm", "acme/llm"))
    result = CliRunner().invoke(app, ["validate", str(file)])
    assert result.exit_code == 0
    assert "acme/llm is not built in; the stage's image must bring it" in result.stderr


def test_validate_warns_of_an_alias_of_a_voice_that_no_published_checkpoint_has(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    sample = next(path for path in SAMPLES if path.stem == "qwen25-omni").read_text()
    file.write_text(sample.replace("alloy: Chelsie", "alloy: Cherry"))
    result = CliRunner().invoke(app, ["validate", str(file)])
    assert result.exit_code == 0, result.output
    assert "spec.aliases.voices[alloy]: Cherry is no voice of the published checkpoints" in result.stderr


def test_validate_prints_every_problem(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("apiVersion: v1\nkind: OmniPipeline\nmetadata: {name: A}\nspec: {model: {uri: x}, stages: []}\n")
    status, out, err = invoke("validate", str(file))
    assert (status, out) == (1, "")
    assert [line.removeprefix(f"{file}: ").split(":")[0] for line in err.splitlines()] == [
        "apiVersion",
        "metadata.name",
        "spec.model.uri",
        "spec.stages",
    ]


def test_validate_reads_stdin_with_many_documents() -> None:
    """Documents of other kinds are ignored; all problems of all pipelines are in one JSON list."""
    good = next(path for path in SAMPLES if path.stem == "generic-llm").read_text()
    bad = good.replace("name: generic-llm", "name: Wrong").replace("replicas:", "replica:")
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: a}\n"
    result = CliRunner().invoke(app, ["validate", "-", "-o", "json"], input="---\n".join((claim, good, bad, "")))
    assert result.exit_code == 1
    first, second = json.loads(result.stdout)
    assert (first["source"], first["name"], first["valid"]) == ("stdin, document 2", "generic-llm", True)
    assert (second["source"], second["valid"]) == ("stdin, document 3", False)
    assert "metadata.name" in {problem["field"] for problem in second["problems"]}


def test_validate_checks_every_file(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    status, out, err = invoke("validate", *map(str, (SAMPLES[0], missing, SAMPLES[1])))
    assert status == 1
    assert [line.split(",")[0] for line in out.splitlines()] == [f"OK: {path.stem}" for path in SAMPLES[:2]]
    assert f"{missing}: file: cannot be read" in err
    assert invoke("validate", str(SAMPLES[0]), "-o", "yaml")[1].startswith(f"- source: {SAMPLES[0]}\n")
    assert invoke("validate", str(SAMPLES[0]), "-o", "xml")[0] == 2


def test_validate_refuses_what_holds_no_pipeline() -> None:
    for text, says in (
        ("", "holds 0 YAML documents"),
        ("kind: Pod\n", "kind"),
        ("- 1\n", "must hold one OmniPipeline"),
    ):
        result = CliRunner().invoke(app, ["validate", "-"], input=text)
        assert result.exit_code == 1
        assert says in result.stderr


def test_render_prints_a_list_for_programs() -> None:
    status, out, _ = invoke("render", str(SAMPLES[0]), "-o", "json")
    rendered = json.loads(out)
    assert (status, rendered["kind"]) == (0, "List")
    assert rendered["items"][0]["kind"] == "ServiceAccount"


def test_the_endpoint_may_be_in_the_environment() -> None:
    environ = {"OMNIPIPE_ENDPOINT": "127.0.0.1:1"}
    result = CliRunner(env=environ).invoke(app, ["generate", "--text", "Hi", "--timeout", "0.2"])
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.stderr


@pytest.mark.needs_vllm
def test_run_without_a_local_checkpoint(tmp_path: Path) -> None:
    sample = next(path for path in SAMPLES if path.stem == "qwen25-omni")
    status, _, err = invoke("run", str(sample))
    assert status == 1
    assert "spec.model.uri is hf://Qwen/Qwen2.5-Omni-7B, which is not a directory on this machine" in err
    assert "--model-dir DIR" in err
    status, _, err = invoke("run", str(sample), "--model-dir", str(tmp_path))
    assert status == 1
    assert f"{tmp_path} holds no checkpoint (config.json is missing)" in err


@pytest.mark.needs_vllm
def test_commands_that_write_a_tiny_model_overwrite_no_other_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    weights = tmp_path / "real" / "model.safetensors"
    weights.write_text("trained for weeks")
    (tmp_path / "model").symlink_to("real")
    for arguments, remedy in (
        (("demo", "--family", "qwen2_5_omni", "--out", str(tmp_path)), "choose another folder with --out"),
        (("tiny-model", str(tmp_path / "real"), "--family", "qwen2_5_omni"), "choose another folder"),
    ):
        status, _, err = invoke(*arguments)
        assert status == 1
        assert f"holds files that omnipipe tiny-model did not write; {remedy}" in err
    assert weights.read_text() == "trained for weeks"


@pytest.mark.needs_vllm
def test_demo_replaces_the_checkpoint_of_an_earlier_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = subprocess.CompletedProcess("tiny-model", 1, "", "no space left")
    monkeypatch.setattr(demo.subprocess, "run", lambda *_, **__: refused)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / MARKER).touch()
    (tmp_path / "model" / "spk_dict.pt").touch()
    status, _, err = invoke("demo", "--family", "qwen2_5_omni", "--out", str(tmp_path))
    assert (status, (tmp_path / "model").exists()) == (1, False)
    assert "no space left" in err


GENERATE = ("generate", "--endpoint", "127.0.0.1:1")
BAD_GENERATE = {
    "no prompt": ((), 2, "pass the prompt with exactly one of"),
    "two prompts": (("--text", "a", "--prompt-file", "b"), 2, "pass the prompt with exactly one of"),
    "sampling": (("--text", "a", "--sampling", "x"), 2, "give it as STAGE.KEY=VALUE"),
    "modality": (("--text", "a", "--modality", "video"), 2, "'video' is not one of"),
    "no image": (("--text", "a", "--image", "/absent.png"), 1, "cannot read /absent.png: No such file or directory"),
    "no prompt file": (("--prompt-file", "/absent.txt"), 1, "cannot read /absent.txt"),
    "text beside embeddings": (("--text", "a", "--prompt-embeds", "b"), 2, "pass the prompt with exactly one of"),
    "system beside embeddings": (("--prompt-embeds", "b", "--system", "c"), 2, "--prompt-embeds is the whole prompt"),
    "no embeddings": (("--prompt-embeds", "/absent.npy"), 1, "cannot read /absent.npy: No such file or directory"),
    "no array": (("--prompt-embeds", __file__), 1, "it is not a .npy file of numbers"),
    "priority": (("--text", "a", "--priority", "1001"), 2, "'--priority'"),
    "raw with media": (("--text", "a", "--raw", "--audio", __file__), 2, "--raw takes no --system and no media"),
    "no folder": (
        ("--text", "a", "--out", "/absent/a.wav"),
        1,
        "cannot write /absent/a.wav: there is no folder /absent",
    ),
    "a folder": (("--text", "a", "--json", "/dev"), 1, "cannot write /dev: it is a folder"),
    "a folder that is a file": (("--text", "a", "--trace", "/dev/null/a"), 1, "there is no folder /dev/null"),
    "a long name": (("--text", "a", "--out", "a" * 300), 1, "File name too long"),
    "no picture": (("--text", "a", "--timeline", "a.doc"), 1, "the name must end with .png, .svg or .pdf"),
    "wav without sound": (("--text", "a", "--modality", "text", "--out", "x.wav"), 2, "--out needs --modality audio"),
}


def test_embeddings_are_read_from_an_array_file(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "rows.npy", np.asfortranarray(rows))
    prompt = read_prompt(embeds=tmp_path / "rows.npy")
    assert np.array_equal(prompt["prompt_embeds"], rows)
    assert prompt["prompt_embeds"].flags.c_contiguous


def test_an_array_file_cannot_run_code(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(InputFileError, match=r"is not a \.npy file of numbers"):
        read_prompt(embeds=tmp_path / "objects.npy")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_pipe_that_is_not_utf_8(errors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever Python makes of it, which depends on the locale: a prompt is refused, and a chat reads on."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8", errors=errors))
    with pytest.raises(InputFileError, match="cannot read stdin: it is not UTF-8 text"):
        read_prompt(file=Path("-"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff\nb\n"), encoding="utf-8", errors=errors))
    assert list(prompt_lines()) == ["a\n", "\udcff\n", "b\n"]


@pytest.mark.parametrize("case", BAD_GENERATE, ids=lambda name: name.replace(" ", "-"))
def test_generate_refuses_wrong_arguments(case: str) -> None:
    arguments, expected, message = BAD_GENERATE[case]
    status, _, err = invoke(*GENERATE, *arguments)
    assert status == expected
    assert message in err


def test_generate_reports_an_unreachable_server() -> None:
    status, out, err = invoke(*GENERATE, "--text", "a", "--timeout", "5")
    assert (status, out.strip()) == (1, "")
    assert "127.0.0.1:1" in err
    assert "Traceback" not in err
