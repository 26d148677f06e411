"""`omnipipe init`: what it writes passes `omnipipe validate`, whatever is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from omni_cli.commands.init import CHOICES, InitError, choose, write_pipeline
from omni_cli.main import app
from omni_proto.pipeline.read.offline import parse_checked


def init(*arguments: str, answers: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["init", *arguments], input=answers)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.sample)
def test_each_choice_is_valid_and_has_the_name(choice: object) -> None:
    number = CHOICES.index(choice) + 1  # type: ignore[arg-type]
    status, text, said = init("my-omni", answers=f"{number}\n\n\n")
    assert status == 0, said
    text = text[text.index("#") :]  # the runner echoes the answers
    pipeline = parse_checked(text)
    assert pipeline.metadata.name == "my-omni"
    assert "omnipipe validate my-omni.yaml" in text
    assert CHOICES[number - 1].sample not in text


def test_any_text_model_and_any_number_of_gpus() -> None:
    for gpus in (0, 1, 4):
        status, text, said = init("chat", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpus", str(gpus))
        assert status == 0, said
        (stage,) = yaml.safe_load(text)["spec"]["stages"]
        assert stage.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0) == gpus
    assert "uri: pvc://models/llama" in init("chat", "--model", "pvc://models/llama")[1]
    assert (
        "defaults: {image: registry.example/stage:1}"
        in init("--model", "a/b", "--image", "registry.example/stage:1")[1]
    )


@pytest.mark.parametrize("name", ["null", "true", "yes", "y", "e1", "x"])
def test_names_that_yaml_reads_otherwise(name: str) -> None:
    status, text, said = init(name, "--model", "a/b")
    assert (status, said) == (0, "")
    assert yaml.safe_load(text)["metadata"]["name"] == name


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--model", "Qwen/Qwen2.5-Omni-7B", "--gpus", "2"), "has a sample for 1 or 3 GPUs, not for 2"),
        (("My_Omni", "--model", "a/b"), "metadata.name"),
        (("", "--model", "a/b"), "metadata.name: must not be empty"),
        (("x: {}", "--model", "a/b"), "metadata.name: must be lower-case"),
        (("--model", ""), "spec.model.uri"),
        (("--model", "a b/c"), "spec.model.uri"),
        (("--model", "a/b # c"), "spec.model.uri"),
        (("--model", "a/b", "--image", "no image"), "spec.defaults.image: must be the name of an image"),
        (("--model", "a/b", "--image", "a}, b: {c"), "spec.defaults.image: must be the name of an image"),
        (("--out", "/absent/omni.yaml"), "cannot write /absent/omni.yaml: there is no folder /absent"),
        (("--out", "/dev/null"), "cannot write /dev/null: it exists"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments: tuple[str, ...], says: str) -> None:
    status, text, said = init(*arguments)
    assert (status, text) == (1, "")
    assert says in said


def test_answers_are_checked_and_a_file_is_not_overwritten(tmp_path: Path) -> None:
    assert "is not in the list" in init(answers="9\n")[2]
    assert "is not a number of GPUs" in init(answers="a/b\nmany\n")[2]
    file = tmp_path / "p.yaml"
    assert init("--model", "a/b", "--out", str(file))[0] == 0
    assert init("--model", "a/b", "--out", str(file))[0] == 1
    with pytest.raises(InitError):
        choose("qwen/qwen2.5-omni-3b", 5)
    assert parse_checked(write_pipeline(choose("hf://a/b", 1), "x", None)).spec.model is not None
