"""`omnipipe init`: writes a pipeline for a model and a number of GPUs, from the samples with calculated GPU memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Final

from omni_proto.pipeline import PipelineError
from omni_proto.pipeline.read.offline import parse_checked

HF: Final = "hf://"
MAX_GPUS: Final = 64
ANY_TEXT_MODEL: Final = "generic-llm"


_URI: Final = re.compile(r"(?P<key>uri: )\S+")


@dataclass(frozen=True)
class SampleChoice:
    """A sample, and what it is for."""

    sample: str
    gpus: int
    title: str
    chosen: str | None = None
    """Repository on the model hub that the sample is for, if it is not the sample's first; empty: a text model of the
    user's choice."""

    @cached_property
    def model(self) -> str:
        """Repository on the model hub, or a uri; empty: a text model of the user's choice."""
        if self.chosen is not None:
            return self.chosen
        found = _URI.search(_read_sample(self.sample))
        return found[0].removeprefix("uri: ").removeprefix(HF) if found else ""


CHOICES: Final = (
    SampleChoice("qwen25-omni-one-gpu", 1, "speech, images, video; one GPU of 80 GB"),
    SampleChoice("qwen25-omni", 3, "the same, each stage on a GPU of its own (32, 16 and 16 GB)"),
    SampleChoice("qwen25-omni-3b", 1, "the same, smaller; one GPU of 24 GB"),
    SampleChoice("qwen3-omni-30b-a3b-one-gpu", 1, "one GPU with 141 GB"),
    SampleChoice("qwen3-omni-30b-a3b", 3, "GPUs of 80, 24 and 24 GB"),
    SampleChoice("whisper-llm-voice", 0, "speech in and out, without a GPU", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    SampleChoice(ANY_TEXT_MODEL, 1, "any text model that vLLM serves", ""),
)
_NAME: Final = re.compile(r"(?m)^(?P<key>metadata:\n  name: )\S+$")
_GPUS: Final = re.compile(r"(?P<key>nvidia\.com/gpu: )\d+")
_COMMANDS: Final = """#   omnipipe validate {name}.yaml
#   kubectl apply -f {name}.yaml
#   omnipipe status {name} --watch
"""
_PLAIN: Final = re.compile(r"[A-Za-z][\w./:@+-]*[\w]|[A-Za-z]")
_WORDS: Final = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
"""Names that YAML reads as something else."""
_HEAD: Final = re.compile(r"\A(#.*\n)+")


class InitError(ValueError):
    """No sample fits; the message says which do."""


def choose(model: str, gpus: int) -> SampleChoice:
    """Returns the choice for a model (ORG/NAME, or a uri) and a number of GPUs of the pipeline. Raises InitError."""
    repository = model.removeprefix(HF)
    known = [choice for choice in CHOICES if choice.model.lower() == repository.lower() and choice.model]
    if not known:
        return SampleChoice(ANY_TEXT_MODEL, gpus, "", repository)
    for choice in known:
        if choice.gpus == gpus:
            return choice
    counts = " or ".join(str(choice.gpus) for choice in known)
    raise InitError(f"{known[0].model} has a sample for {counts} GPUs, not for {gpus}; give --gpus {known[0].gpus}")


def write_pipeline(choice: SampleChoice, name: str, image: str | None) -> str:
    """Returns the text of a pipeline that `omnipipe validate` accepts. Raises InitError, which names the wrong field.

    image: of the stages; None: the operator's default image, which is built for GPUs.
    """
    text = _NAME.sub(lambda match: f"{match['key']}{_scalar(name)}", _read_sample(choice.sample), count=1)
    if choice.sample == ANY_TEXT_MODEL:
        uri = choice.model if "://" in choice.model else f"{HF}{choice.model}"
        text = _URI.sub(lambda match: f"{match['key']}{_scalar(uri)}", text, count=1)
        text = _set_gpus(text, choice.gpus)
    text = _HEAD.sub(lambda match: _without_commands(match[0]) + _COMMANDS.format(name=name), text)
    if image:
        text = text.replace("spec:\n", f"spec:\n  defaults: {{image: {_scalar(image)}}}\n", 1)
    try:
        parse_checked(text, source=name or "NAME")
    except PipelineError as error:
        raise InitError(str(error)) from error
    return text


def _scalar(text: str) -> str:
    """Returns a text as YAML reads it back: in quotes, unless it is a plain word or path."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else json.dumps(text, ensure_ascii=False)


def _read_sample(name: str) -> str:
    return files("omni_cli").joinpath("assets", "samples", f"{name}.yaml").read_text(encoding="utf-8")


def _set_gpus(text: str, gpus: int) -> str:
    if gpus == 0:
        return re.sub(r"(?m)^.*nvidia\.com/gpu.*\n", "", text)
    return _GPUS.sub(lambda match: f"{match['key']}{gpus}", text)


def _without_commands(head: str) -> str:
    """Returns the comment at the top of a sample without the commands, which name the sample's own file."""
    lines = [line for line in head.splitlines(keepends=True) if not line.startswith("#   ")]
    return "".join(lines)


def ask(prompt: Callable[[str, str], str], show: Callable[[str], object]) -> tuple[str, int]:
    """Ask for the model and the GPUs. Returns both. prompt(question, default) returns the user's answer.

    Raises InitError if an answer is no number.
    """
    show("Models with a sample:")
    for number, choice in enumerate(CHOICES, 1):
        show(f"  {number}  {choice.model or 'another model':34} {choice.gpus} GPUs  {choice.title}")
    answer = prompt("Model: a number of the list, or ORG/NAME of a text model", "1").strip()
    if answer.isascii() and answer.isdigit():
        if not 1 <= int(answer) <= len(CHOICES):
            raise InitError(f"{answer} is not in the list; give 1 to {len(CHOICES)}, or ORG/NAME")
        chosen = CHOICES[int(answer) - 1]
        if chosen.model:
            return chosen.model, chosen.gpus
        answer = prompt("Repository of the model, ORG/NAME", "HuggingFaceTB/SmolLM2-1.7B-Instruct").strip()
    gpus = prompt("GPUs of the pipeline", "1").strip()
    if not (gpus.isascii() and gpus.isdigit()) or int(gpus) > MAX_GPUS:
        raise InitError(f"{gpus!r} is not a number of GPUs, 0 to {MAX_GPUS}")
    return answer, int(gpus)
