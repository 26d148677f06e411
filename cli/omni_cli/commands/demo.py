"""`omnipipe demo`: serves a small pipeline on this machine, asks it, and saves text and speech.

weights -> one process for each stage -> prompts -> text, WAV and timeline of each answer -> all stopped

The weights are real: a text model and a voice, fetched once. If they cannot be fetched, or for a model family that is
named, they are a tiny checkpoint's, which are random.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from omni_cli.commands.generate import InputFileError, Outputs, ask, read_prompt, save_answer
from omni_cli.commands.tiny_model import TinyModelError, check_directory
from omni_cli.local.guard import ProcessId, list_running
from omni_cli.local.pipeline import LocalOptions, LocalPipeline, LocalRunError
from omni_cli.local.processes import RUN_MODULE
from omni_cli.local.progress import FetchProgress, make_progress
from omni_cli.weights.demo import fetch_demo_weights, fetch_whisper
from omni_cli.weights.wheels import WeightsError
from omni_proto.client import GenerateArguments, GenerationResult, OmniRequestError
from omni_proto.pipeline import load_pipeline, order_stages

ASSETS = Path(__file__).parents[1] / "assets"
TINY_PIPELINE: Final = ASSETS / "tiny-omni.yaml"
"""The pipeline that runs if the real weights cannot be fetched."""
SPOKEN_PIPELINE: Final = ASSETS / "spoken" / "llm-voice.yaml"
DIALOGUE_PIPELINE: Final = ASSETS / "spoken" / "whisper-llm-voice.yaml"
RANDOM: Final = "the weights are random: the text is random words, and the speech is in no language"
REAL: Final = (
    "the weights are SmolLM2-135M-Instruct (Apache-2.0) and the Piper voice joe (CC0 data); so small a model is often "
    "wrong"
)
HEARING: Final = "; the question is spoken, and Whisper base (MIT) writes it down"
SEED = 0
TIMEOUT_S = 300.0
IMAGE_SIZE = 112


class DemoError(RuntimeError):
    """A part of the demo failed."""


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """One prompt of the demo."""

    name: str
    text: str
    image: Path | None = None
    audio: Path | None = None


@dataclass(frozen=True, slots=True)
class Demo:
    """What a demo runs and asks."""

    pipeline: Path
    models: Mapping[str, Path]
    """Directory of each stage's checkpoint; only "" if all stages share one."""
    prompts: tuple[DemoPrompt, ...]
    remark: str
    """What the weights are worth."""


SPOKEN_PROMPTS: Final = (
    DemoPrompt("capital", "What is the capital of Japan?"),
    DemoPrompt("week", "How many days are in a week?"),
    DemoPrompt("sky", "What color is the sky?"),
)


def pick_pipeline(family: str) -> Path:
    """Returns the tiny pipeline of a model family. Raises DemoError that lists the families."""
    known = {family_of(path): path for path in sorted(ASSETS.glob("*.yaml"))}
    if family not in known:
        raise DemoError(f"no demo of the model family {family!r}; there are: {', '.join(sorted(known))}")
    return known[family]


def family_of(pipeline: Path) -> str:
    """Returns the model family of a pipeline's entry stage."""
    return order_stages(load_pipeline(pipeline))[0].component.partition("/")[0]


def run_demo(out: Path, family: str | None = None, *, talk: bool = False, http: int | None = None) -> int:
    """Run the demo and write the results under out. A family's demo has random weights. talk: the question is spoken.
    http: port of a gateway that serves the pipeline after the prompts, until Ctrl-C or SIGTERM.

    Returns 0 if every prompt was answered with text and audio, 130 after Ctrl-C or SIGTERM, else 1.
    """
    console = Console(stderr=True, soft_wrap=True)
    signal.signal(signal.SIGTERM, _leave)
    try:
        demo = prepare_demo(out, family, console, talk=talk)
        answers, processes = serve_and_ask(demo, out, console, http)
        if left := list_running(processes):
            raise DemoError(f"{len(left)} of {len(processes)} processes are still running")
    except (DemoError, LocalRunError, OmniRequestError, InputFileError, OSError) as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped", highlight=False)
        return 130
    Console().print(make_table(answers))
    console.print(demo.remark, highlight=False, markup=False)
    console.print(f"text, speech.wav and timeline.png of each prompt are under {out}/", highlight=False, markup=False)
    if http is None:
        console.print(describe_next(demo), highlight=False, markup=False)
    return 0


def prepare_demo(out: Path, family: str | None, console: Console, *, talk: bool = False) -> Demo:
    """Returns the spoken demo with real weights, or the tiny one of a family. Raises DemoError, OSError."""
    out.mkdir(parents=True, exist_ok=True)
    if family is None:
        try:
            return spoken_demo(console, talk=talk)
        except (WeightsError, OSError) as error:
            console.print(
                f"no real weights: {error}; so a tiny model with random weights runs",
                style="yellow", highlight=False, markup=False,
            )  # fmt: skip
    pipeline = TINY_PIPELINE if family is None else pick_pipeline(family)
    model = write_model(out / "model", family_of(pipeline), console)
    return Demo(pipeline, {"": model}, make_prompts(out), RANDOM)


def spoken_demo(console: Console, *, talk: bool = False) -> Demo:
    """Returns the demo with real weights, which are downloaded the first time. Raises WeightsError, OSError."""
    with FetchProgress(console) as progress:
        weights = fetch_demo_weights(progress)
        models = {"llm": weights.llm, "voice": weights.voice}
        if not talk:
            return Demo(SPOKEN_PIPELINE, models, SPOKEN_PROMPTS, REAL)
        models["asr"] = fetch_whisper(progress)
    question = DemoPrompt("question", "", audio=ASSETS / "speech.wav")
    return Demo(DIALOGUE_PIPELINE, models, (question,), REAL + HEARING)


def describe_next(demo: Demo) -> str:
    """Returns instructions for talking to the demo's weights in a browser and with curl."""
    command = sys.argv[0] if Path(sys.argv[0]).name == "omnipipe" else "omnipipe"
    name = load_pipeline(demo.pipeline).metadata.name
    models = " ".join(f"--model-dir {stage}{'=' if stage else ''}{path}" for stage, path in demo.models.items())
    return (
        "\nTo talk to it yourself, keep it running with an HTTP gateway:\n"
        f"  {command} run {demo.pipeline} {models} --http 8000\n"
        "and open http://localhost:8000 in a browser, or ask with curl:\n" + _curl(demo, name)
    )


def _curl(demo: Demo, name: str) -> str:
    if demo.pipeline == DIALOGUE_PIPELINE:
        # A pipeline that hears takes no text.
        audio = demo.prompts[0].audio
        return f"  curl localhost:8000/v1/audio/transcriptions -F model={name} -F file=@{audio}"
    return (
        "  curl localhost:8000/v1/chat/completions -H 'content-type: application/json' \\\n"
        f"""    -d '{{"model": "{name}", "messages": [{{"role": "user", "content": "Say hello."}}]}}'"""
    )


def write_model(directory: Path, family: str, console: Console) -> Path:
    """Write the tiny checkpoint and return its path. Replaces the checkpoint of an earlier demo.

    A separate process writes it, to keep torch out of this one. Raises DemoError; OSError.
    """
    try:
        check_directory(directory)
    except TinyModelError as error:
        raise DemoError(f"{error} with --out") from error
    console.print(f"writing a tiny checkpoint to {directory}", highlight=False, markup=False)
    shutil.rmtree(directory, ignore_errors=True)
    result = subprocess.run(tiny_model_command(directory, family), capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise DemoError(f"the checkpoint could not be written:\n{result.stderr}")
    return directory.resolve()


def tiny_model_command(directory: Path, family: str) -> list[str]:
    """Returns the program and its arguments that write the tiny checkpoint."""
    return [*RUN_MODULE, "omni_cli", "tiny-model", str(directory), "--seed", str(SEED), "--family", family]


def make_prompts(out: Path) -> tuple[DemoPrompt, ...]:
    """Returns three prompts: text, audio (by espeak-ng) and an image (a red disc). Writes the two files to out."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (IMAGE_SIZE, IMAGE_SIZE), "white")
    border = IMAGE_SIZE // 5
    ImageDraw.Draw(picture).ellipse((border, border, IMAGE_SIZE - border, IMAGE_SIZE - border), fill="red")
    image, audio = out / "prompt-image.png", out / "prompt-audio.wav"
    picture.save(image)
    shutil.copyfile(ASSETS / "speech.wav", audio)
    return (
        DemoPrompt("text", "Say hello to the world."),
        DemoPrompt("audio", "Answer the question that you hear.", audio=audio),
        DemoPrompt("image", "What do you see in this picture?", image=image),
    )


def serve_and_ask(
    demo: Demo, out: Path, console: Console, http: int | None = None
) -> tuple[dict[str, GenerationResult], set[ProcessId]]:
    """Returns the answers by prompt, and the processes that served them, which have been stopped. http: see run_demo.

    Raises LocalRunError, OmniRequestError, InputFileError, OSError, DemoError.
    """
    pipeline = load_pipeline(demo.pipeline)
    names = [stage.name for stage in order_stages(pipeline)]
    models = {name: str(demo.models.get(name) or demo.models[""]) for name in names}
    console.print(f"starting {', '.join(names)} as processes of this machine", highlight=False, markup=False)
    answers: dict[str, GenerationResult] = {}
    # On a busy machine, processes have taken over 15 s to end. Somebody who stops the page does not wait for long.
    grace_s = 120.0 if http is None else 15.0
    options = LocalOptions(model_path=models, log_dir=out / "logs", http_port=http, grace_s=grace_s)
    with LocalPipeline(pipeline, options) as running:
        with make_progress(console, names) as progress:
            running.start(progress)
        processes = running.list_processes()
        for prompt in demo.prompts:
            shown = prompt.text or f"(spoken, {prompt.audio})"
            console.print(f"\n{prompt.name}: {shown}", style="bold", highlight=False, markup=False)
            try:
                answers[prompt.name] = ask_one(running.endpoint, prompt, out / prompt.name, console)
            except OmniRequestError:
                running.check()
                raise
        running.check()
        if http is not None:
            _keep_serving(running, console)
        late = running.stop()
    if late:
        raise DemoError(f"{', '.join(late)} did not end in time and had to be killed")
    return answers, processes


def _keep_serving(running: LocalPipeline, console: Console) -> None:
    """Wait for Ctrl-C or SIGTERM. Raises LocalRunError if a process ends before."""
    console.print(
        f"\na page at {running.http_url}/ and OpenAI's API at {running.http_url}/v1; Ctrl-C stops them",
        highlight=False, markup=False,
    )  # fmt: skip
    try:
        running.watch(lambda: False)
    except KeyboardInterrupt:
        console.print("stopping", highlight=False)


def ask_one(endpoint: str, prompt: DemoPrompt, directory: Path, console: Console) -> GenerationResult:
    """Send one prompt, show the text as it is written, and save the answer. Returns the answer.

    The files are text.txt, speech.wav, timeline.png and answer.json. Raises OmniRequestError, InputFileError, OSError;
    DemoError if text or audio is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    arguments: GenerateArguments = {
        **read_prompt(
            prompt.text,
            images=(prompt.image,) if prompt.image else (),
            audios=(prompt.audio,) if prompt.audio else (),
        ),
        "seed": SEED,
        "timeout": TIMEOUT_S,
    }
    with (directory / "text.txt").open("w", encoding="utf-8") as text:
        heard = partial(_show_heard, console)
        answer = ask(endpoint, arguments, _tee(text.write, console), show_heard=heard)
    save_answer(
        answer,
        Outputs(out=directory / "speech.wav", timeline=directory / "timeline.png", json_file=directory / "answer.json"),
    )
    if not answer.text:
        raise DemoError(f"the {prompt.name} prompt was answered without text")
    if not any(answer.audio):
        raise DemoError(f"the {prompt.name} prompt was answered without audio")
    return answer


def _show_heard(console: Console, text: str) -> None:
    console.print(f"heard: {text.strip()}", style="italic", highlight=False, markup=False)


def _tee(write: Callable[[str], object], console: Console) -> Callable[[str], None]:
    def show(text: str) -> None:
        write(text)
        console.print(text, end="", highlight=False, markup=False)

    return show


def make_table(answers: dict[str, GenerationResult]) -> Table:
    """Returns a table of the answers, one row per prompt."""
    table = Table(title="answers")
    for heading in ("prompt", "text", "speech", "total"):
        table.add_column(heading, justify="right" if heading in ("speech", "total") else "left")
    for name, answer in answers.items():
        text = " ".join(answer.text.split())
        total = answer.summary.total_ns / 1e9 if answer.summary else 0.0
        table.add_row(
            name,
            Text(text if len(text) <= 48 else text[:47] + "…"),
            f"{answer.audio_seconds:.2f} s{' (cut)' if answer.cut_stages else ''}",
            f"{total:.2f} s",
        )
    return table


def _leave(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
