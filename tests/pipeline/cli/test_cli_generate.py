"""`omnipipe generate` with three stage servers: text on stdout, WAV, timeline, JSON, and errors."""

from __future__ import annotations

import json
import subprocess
import wave
from pathlib import Path

import pytest
from PIL import Image

from support.processes.pipelines import OMNIPIPE, RunningPipeline
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.pipeline

SPEECH = Path(__file__).parents[3] / "cli" / "omni_cli" / "assets" / "speech.wav"


def generate(running: RunningPipeline, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [OMNIPIPE, "generate", "--endpoint", running.endpoint, "--timeout", str(PATIENCE_S), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)


def test_text_wav_timeline_and_json(tiny_pipeline: RunningPipeline, tmp_path: Path) -> None:
    wav, picture, description = tmp_path / "speech.wav", tmp_path / "lanes.png", tmp_path / "answer.json"
    files = ("--out", str(wav), "--timeline", str(picture), "--json", str(description))
    done = generate(tiny_pipeline, "--text", "Hello there", "--seed", "7", *files)
    assert done.returncode == 0, done.stderr
    answer = json.loads(description.read_text())
    assert done.stdout == answer["text"]["thinker"] + "\n"
    with wave.open(str(wav)) as audio:
        assert (audio.getframerate(), audio.getnchannels(), audio.getsampwidth()) == (24000, 1, 2)
        assert audio.getnframes() == answer["stages"][2]["usage"]["audio_samples"] > 0
        assert any(audio.readframes(audio.getnframes()))
    with Image.open(picture) as image:
        assert image.width > 500
    assert [stage["stage"] for stage in answer["stages"]] == ["thinker", "talker", "token2wav"]
    for stage in answer["stages"]:
        timings = stage["timings"]
        assert 0 < timings["engine_submitted_ns"] <= timings["first_output_ns"] <= timings["last_output_ns"]
        assert timings["last_output_ns"] <= timings["finished_ns"]
        assert timings["step_ns"]


def test_media_prompt_is_what_the_model_sees(tiny_pipeline: RunningPipeline, tmp_path: Path) -> None:
    Image.new("RGB", (112, 112), "red").save(tmp_path / "red.png")
    prompts = {
        "text": (),
        "audio": ("--audio", str(SPEECH)),
        "image": ("--image", str(tmp_path / "red.png")),
        "both": ("--audio", str(SPEECH), "--image", str(tmp_path / "red.png")),
    }
    tokens: dict[str, int] = {}
    for name, media in prompts.items():
        description = tmp_path / f"{name}.json"
        done = generate(tiny_pipeline, "--text", "And?", *media, "--modality", "text", "--json", str(description))
        assert done.returncode == 0, done.stderr
        answer = json.loads(description.read_text())
        assert [stage["stage"] for stage in answer["stages"]] == ["thinker"]
        assert answer["audio"] is None
        tokens[name] = answer["stages"][0]["usage"]["prompt_tokens"]
    assert tokens["text"] < tokens["image"] < tokens["both"]
    assert tokens["text"] < tokens["audio"] < tokens["both"]


def test_prompt_from_stdin_system_and_sampling(tiny_pipeline: RunningPipeline, tmp_path: Path) -> None:
    description = tmp_path / "answer.json"
    options = ("--prompt-file", "-", "--system", "Be brief.", "--modality", "text", "--max-tokens", "5")
    done = generate(
        tiny_pipeline, *options, "--sampling", "thinker.min_tokens=5", "--json", str(description), stdin="Hello"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(description.read_text())["stages"][0]["usage"]["completion_tokens"] == 5


def test_equal_seeds_give_equal_answers(tiny_pipeline: RunningPipeline, tmp_path: Path) -> None:
    audios = []
    for name in ("one", "two"):
        wav = tmp_path / f"{name}.wav"
        hot = ("--sampling", "thinker.temperature=0.8", "--sampling", "talker.temperature=0.8")
        done = generate(tiny_pipeline, "--text", "Hello", "--seed", "11", *hot, "--out", str(wav))
        assert done.returncode == 0, done.stderr
        audios.append((done.stdout, wav.read_bytes()))
    assert audios[0] == audios[1]


BAD = {
    "unknown stage": (("--sampling", "nobody.seed=1"), "known stages: thinker, talker, token2wav"),
    "unknown voice": (("--voice", "Nobody"), "INVALID_ARGUMENT"),
    "prompt too long": (("--system", "word " * 4000), "PROMPT_TOO_LONG"),
}


@pytest.mark.parametrize("case", BAD, ids=lambda name: name.replace(" ", "-"))
def test_errors_name_code_and_remedy(tiny_pipeline: RunningPipeline, case: str) -> None:
    arguments, expected = BAD[case]
    done = generate(tiny_pipeline, "--text", "Hello", *arguments)
    assert done.returncode == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
