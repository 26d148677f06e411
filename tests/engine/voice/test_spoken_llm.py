"""A text model and a voice as one pipeline, offline: the one-shot runner, batches, and Stream beside Full."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from omni_proto.stage_config import StageConfig
from omni_stage import OmniLLM
from omni_stage.engine.offline.stage_llm import StageLLM
from omni_stage.models.component import EdgeInput, FinishReason
from omni_stage.models.shared.text.edge import text_rows
from omni_stage.models.voice.checkpoint import DICTIONARY_VARIABLE
from omni_stage.models.voice.tiny import write_tiny_checkpoint
from support.models.generic_checkpoint import write_tiny_text_checkpoint
from support.models.hub import Hub
from support.models.real_weights import find_weights

pytestmark = pytest.mark.engine

PIPELINE = """
apiVersion: omnipipeline.io/v1alpha1
kind: OmniPipeline
metadata: {name: spoken}
spec:
  stages:
  - name: llm
    component: generic/llm
    model: {uri: hf://org/tiny}
    outputs: [Text]
    engineArgs: {dtype: float32, maxModelLen: 128, kvCacheMemoryMib: 8, enforceEager: true, blockSize: 32}
    defaultSampling: {temperature: 0, maxTokens: 40, ignoreEos: true}
  - name: voice
    component: voice/vits
    model: {uri: hf://org/voice}
    inputs: [{from: llm, mode: MODE}]
    outputs: [Audio]
    engineArgs: {maxNumSeqs: 8}
"""
TEXTS = [
    "Hello.",
    "The capital of France is Paris. It has 2 million people!",
    "One, two, three.",
    "a",
    "Is it late? Yes, it is.",
    "Rain in the north; sun in the south.",
    "A longer sentence of several words that takes a while to be spoken by such a small voice.",
    "no end mark",
]


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("voice"))


def speak(folder: Path, texts: list[str], *, together: bool = True) -> list[torch.Tensor]:
    """Returns each text's audio: all texts at once, or one after another. Checks that a text of marks is refused."""
    config = StageConfig.model_validate(
        {
            "schemaVersion": 1, "pipeline": "p", "stage": "voice", "component": "voice/vits",
            "model": {"path": str(folder)}, "outputs": ["Audio"], "input": {"source": "llm", "mode": "Full"},
        }
    )  # fmt: skip

    async def run() -> list[torch.Tensor]:
        stage = StageLLM(config)
        await stage.start()
        try:
            sources = [
                EdgeInput({key: torch.from_numpy(rows) for key, rows in text_rows(text).items()}) for text in texts
            ]
            calls = [stage.generate(source, seed=7) for source in sources]
            results = await asyncio.gather(*calls) if together else [await call for call in calls]
            marks = EdgeInput({key: torch.from_numpy(rows) for key, rows in text_rows("...").items()})
            assert (await stage.generate(marks, seed=7)).finish_reason is FinishReason.EMPTY_INPUT
            return [audio for result in results if (audio := result.audio) is not None]
        finally:
            await stage.shutdown()

    return asyncio.run(run())


def test_eight_texts_at_once_have_the_audio_of_one_alone(voice: Path) -> None:
    at_once, alone = speak(voice, TEXTS), speak(voice, TEXTS, together=False)
    for text, audio, expected in zip(TEXTS, at_once, alone, strict=True):
        assert audio.abs().max() > 0.05, text
        torch.testing.assert_close(audio, expected, rtol=0, atol=1e-5, msg=text)


def test_a_piper_voice_of_a_hub_speaks_with_the_dictionary_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published file, from a folder of a repository with many voices, sounds as from its folder here."""
    joe = find_weights("en-us-joe-medium")
    place, dest = "en/en_US/joe/medium", tmp_path / "voice"
    files = {f"{place}/{file.name}": file.read_bytes() for file in joe.glob("*.onnx*")}
    files["en/en_US/amy/low/en_US-amy-low.onnx"] = b"another voice"
    with Hub(files, {"rhasspy/piper-voices": None}) as hub:
        command = [sys.executable, "-m", "omni_stage", "fetch", "--component", "voice/vits", "--dest", str(dest)]
        environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        subprocess.run([*command, "--uri", f"hf://rhasspy/piper-voices/{place}"], env=environment, check=True)
    assert not (dest / "cmudict.dict").exists()
    monkeypatch.setenv(DICTIONARY_VARIABLE, str(joe / "cmudict.dict"))
    (fetched,), (here,) = speak(dest, TEXTS[:1]), speak(joe, TEXTS[:1])
    assert fetched.abs().max() > 0.05
    torch.testing.assert_close(fetched, here, rtol=0, atol=0)


def test_a_streamed_answer_has_the_audio_of_the_whole_one(voice: Path, tmp_path: Path) -> None:
    checkpoint = write_tiny_text_checkpoint(tmp_path / "tiny", seed=5)
    file = tmp_path / "pipeline.yaml"
    audios, texts = {}, set()
    for mode in ("Stream", "Full"):
        file.write_text(PIPELINE.replace("MODE", mode))
        with OmniLLM(file, model_dir={"llm": checkpoint, "voice": voice}) as llm:
            (result,) = llm.generate("Hello", seed=7)
        assert result.sample_rate_hz == 16_000
        assert result.audio is not None
        audios[mode] = result.audio
        texts.add(result.text)
    (text,) = texts
    torch.testing.assert_close(audios["Stream"], audios["Full"], rtol=0, atol=1e-5)
    (spoken,) = speak(voice, [text])
    torch.testing.assert_close(audios["Full"], spoken, rtol=0, atol=1e-5)
