"""`make oracle`: compares our stages with transformers' generate(), in the release's version and the installed one.

    PYTHONPATH=tests python -m checks.oracle --json benchmarks/results/oracle.json

The release is transformers 4.52.4 (environment.py). The checkpoint is tiny, with a shape and a seed that no test uses.
The questions have text, audio and images. Thinker and talker are greedy, the talker with its repetition penalty.
Prompt, text and codec tokens must be equal, and audio within 1e-5.

transformers 5 turns an attention mask of ones into None. Its talker then leaves out the codec padding and start tokens
and its M-RoPE positions. One padding token on the left of the prompt keeps the mask. The report also shows a run
without that token, but does not judge it. Exits with 1 if a judged answer differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tools.json_text import format_json

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # read when vLLM is imported

from checks.oracle.compare import AUDIO_TOLERANCE, Answer, Verdict, compare
from checks.oracle.environment import release_python
from checks.oracle.release_form import write_release_form

from omni_stage.models.qwen2_5_omni.checkpoint import read_checkpoint
from omni_stage.models.qwen2_5_omni.thinker.component import SPEECH_SYSTEM_PROMPT
from omni_stage.models.qwen2_5_omni.tiny.checkpoint import write_tiny_checkpoint
from omni_stage.models.qwen2_5_omni.tiny.shapes import TinyShape
from support.engines.omni_stages import Collected, run_omni_stages
from support.media.samples import make_audio, make_image
from support.models.reference import ReferencePrompt

SHAPE = TinyShape(
    vocab_size=704,
    thinker_heads=6,
    thinker_kv_heads=3,
    thinker_layers=4,
    talker_hidden_size=128,
    talker_heads=5,
    talker_kv_heads=1,
    talker_layers=3,
    encoder_layers=3,
    audio_codes=160,
    dit_layers=5,
    mel_bins=32,
)
THINKER_TOKENS = 24
TALKER_TOKENS = 60
QUESTIONS = {
    "text": ReferencePrompt("Where does the river start, and how far does the road go?"),
    "audio": ReferencePrompt("What do you hear in this recording?", audios=[make_audio(5, 1.3)]),
    "image": ReferencePrompt("What do you see?", images=[make_image(6, 140, 84)]),
    "two-audios": ReferencePrompt("Which is longer?", audios=[make_audio(2, 0.4), make_audio(3, 2.1)]),
    "image-and-audio": ReferencePrompt(
        "Say it again, slowly.", images=[make_image(8, 84, 168)], audios=[make_audio(9, 0.8)]
    ),
}


@dataclass(frozen=True)
class Peer:
    """One transformers installation with which our stages are compared."""

    name: str
    python: Path
    left_pad: bool
    is_judged: bool


def ask_peer(peer: Peer, checkpoint: Path, questions: Path, out: Path) -> dict[str, Any]:
    """Runs generate.py under the peer's interpreter. Returns its report with the audio of each answer."""
    out.mkdir()
    command = [str(peer.python), str(Path(__file__).parent / "generate.py"), "--checkpoint", str(checkpoint)]
    command += ["--questions", str(questions), "--out", str(out), *(["--left-pad"] if peer.left_pad else [])]
    subprocess.run(command, check=True, timeout=1200)
    report: dict[str, Any] = json.loads((out / "answers.json").read_text(encoding="utf-8"))
    for name, answer in report["answers"].items():
        answer["audio"] = np.load(out / f"{name}.npy")
    return report


def write_questions(folder: Path, stop_ids: Sequence[int], seed: int) -> Path:
    """Writes the file that generate.py reads: the questions, their media, and the arguments of generate().

    Returns its path.
    """
    questions = []
    for name, prompt in QUESTIONS.items():
        images = [folder / f"{name}-{index}.png" for index in range(len(prompt.images))]
        audios = [folder / f"{name}-{index}.npy" for index in range(len(prompt.audios))]
        for path, image in zip(images, prompt.images, strict=True):
            image.save(path)
        for path, audio in zip(audios, prompt.audios, strict=True):
            np.save(path, audio)
        media = {"images": [str(path) for path in images], "audios": [str(path) for path in audios]}
        questions.append({"name": name, "system": SPEECH_SYSTEM_PROMPT, "text": prompt.text, **media})
    generate = {
        "thinker_max_new_tokens": THINKER_TOKENS,
        "thinker_do_sample": False,
        "talker_max_new_tokens": TALKER_TOKENS,
        "talker_do_sample": False,
        "talker_eos_token_id": list(stop_ids),
    }
    file = folder / "questions.json"
    file.write_text(json.dumps({"seed": seed, "questions": questions, "generate": generate}), encoding="utf-8")
    return file


async def ask_us(
    checkpoint: Path, reports: Mapping[str, Mapping[str, Any]], seed: int
) -> dict[str, tuple[Collected, Collected, dict[str, np.ndarray]]]:
    """Sends every question through our thinker and talker: greedy, and otherwise with the components' defaults.

    Returns, for each question, the thinker's and talker's results, and the audio that our token2wav makes from each
    peer's codes.
    """
    answers = {}
    async with run_omni_stages(checkpoint) as stages:
        for name, prompt in QUESTIONS.items():
            thinker = await stages.ask("thinker", prompt.to_user_prompt(), max_tokens=THINKER_TOKENS)
            talker = await stages.ask("talker", thinker.tensors, temperature=0.0, max_tokens=TALKER_TOKENS)
            audio = {}
            for peer, report in reports.items():
                # transformers 4.52.4 leaves out the last code, even if it is not an end token.
                codes = torch.tensor(report["answers"][name]["codes"])
                audio[peer] = (await stages.ask("token2wav", {"codes": codes}, seed=seed)).audio.numpy()
            answers[name] = (thinker, talker, audio)
    return answers


def judge(ours: tuple[Collected, Collected, dict[str, np.ndarray]], peer: str, theirs: Mapping[str, Any]) -> Verdict:
    """Returns how one peer's answer to a question compares with ours."""
    thinker, talker, audio = ours
    return compare(
        Answer(thinker.prompt_token_ids or (), thinker.token_ids, talker.token_ids, audio[peer]),
        Answer(theirs["prompt"], theirs["text"], theirs["codec"], theirs["audio"]),
    )


def run(seed: int, folder: Path) -> dict[str, Any]:
    """Runs every question on all peers and on our stages. Returns the report."""
    checkpoint = write_tiny_checkpoint(folder / "checkpoint", seed=seed, shape=SHAPE, dtype="float32")
    release = folder / "release"
    write_release_form(checkpoint, release)
    questions = write_questions(folder, read_checkpoint(checkpoint).codec.stop_ids, seed)
    here = Path(sys.executable)
    peers = [
        Peer("release", release_python(), left_pad=False, is_judged=True),
        Peer("installed, left-padded", here, left_pad=True, is_judged=True),
        Peer("installed, plain", here, left_pad=False, is_judged=False),
    ]
    reports = {
        peer.name: ask_peer(peer, release, questions, folder / f"answers-{index}") for index, peer in enumerate(peers)
    }
    ours = asyncio.run(ask_us(checkpoint, reports, seed))
    rows = []
    for peer in peers:
        for name, theirs in reports[peer.name]["answers"].items():
            verdict = judge(ours[name], peer.name, theirs)
            rows.append(
                {
                    "peer": peer.name,
                    "transformers": reports[peer.name]["transformers"],
                    "question": name,
                    "judged": peer.is_judged,
                    "tokens": {part: len(theirs[part]) for part in ("prompt", "text", "codec")},
                    "samples": int(theirs["audio"].size),
                    "audio_difference": verdict.audio,
                    "result": verdict.describe(),
                }
            )
    return {
        "checkpoint": {"seed": seed, "shape": {name: getattr(SHAPE, name) for name in SHAPE.__dataclass_fields__}},
        "audio_tolerance": AUDIO_TOLERANCE,
        "machine": {"processor": platform.machine(), "python": platform.python_version(), "torch": torch.__version__},
        "rows": rows,
    }


def main() -> None:
    """Parses the arguments, runs the comparison and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=23)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(arguments.seed, Path(folder))
    print(f"{'transformers':34}{'question':18}{'prompt/text/codec':20}{'audio difference':18}result")
    for row in report["rows"]:
        peer = f"{row['transformers']} ({row['peer']})"
        counts = "/".join(str(count) for count in row["tokens"].values())
        note = "" if row["judged"] else "  (not judged)"
        print(f"{peer:34}{row['question']:18}{counts:20}{row['audio_difference']:<18.2e}{row['result']}{note}")
    if arguments.json:
        arguments.json.write_text(format_json(report), encoding="utf-8")
    sys.exit(any(row["judged"] and row["result"] != "equal" for row in report["rows"]))


if __name__ == "__main__":
    main()
