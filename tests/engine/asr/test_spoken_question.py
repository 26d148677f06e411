"""Whisper and a text model as one pipeline, offline: the text that is heard is what the text model answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_stage import OmniLLM
from omni_stage.errors import InvalidRequestError
from omni_stage.models.asr.tiny import write_tiny_checkpoint
from omni_stage.models.component import AudioPart, ChatMessage, TextPart, UserPrompt
from support.models.generic_checkpoint import write_tiny_text_checkpoint
from support.models.spoken import RATE_HZ, WhisperJudge, make_audio

pytestmark = pytest.mark.engine

PIPELINE = """
apiVersion: omnipipeline.io/v1alpha1
kind: OmniPipeline
metadata: {name: asked}
spec:
  stages:
  - name: asr
    component: asr/whisper
    model: {uri: hf://org/whisper}
    outputs: [Transcript]
    engineArgs: {dtype: float32, maxNumSeqs: 4, kvCacheMemoryMib: 64}
    defaultSampling: {maxTokens: 24}
  - name: llm
    component: generic/llm
    model: {uri: hf://org/tiny}
    inputs: [{from: asr, mode: Full}]
    outputs: [Text]
    engineArgs: {dtype: float32, maxModelLen: 256, kvCacheMemoryMib: 8, enforceEager: true, blockSize: 32}
    defaultSampling: {temperature: 0, maxTokens: 20, ignoreEos: true}
"""


def test_a_spoken_question_is_answered(tmp_path: Path) -> None:
    whisper = write_tiny_checkpoint(tmp_path / "whisper")
    checkpoint = write_tiny_text_checkpoint(tmp_path / "tiny", seed=5)
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE)
    audios = [make_audio(3, 1), make_audio(4, 2)]
    questions = [
        UserPrompt(messages=[ChatMessage("user", [AudioPart(one, RATE_HZ)])], template_arguments={"language": "en"})
        for one in audios
    ]
    with OmniLLM(file, model_dir={"asr": whisper, "llm": checkpoint}) as llm:
        answers = llm.generate(questions)
        again = llm.generate(questions[:1])
        spoken = [ChatMessage("user", [TextPart(answers[0].transcript)])]
        (typed,) = llm.generate([UserPrompt(messages=spoken)])
        with pytest.raises(InvalidRequestError, match="one audio file"):
            llm.generate([UserPrompt(messages=spoken)], modalities=["Transcript"])
    judge = WhisperJudge(whisper)
    for audio, answer in zip(audios, answers, strict=True):
        expected = judge.text(judge.write(audio, timed=False, max_tokens=24))
        assert answer.transcript.rstrip("\ufffd") == expected.rstrip("\ufffd")
        assert answer.text
    assert answers[0].text == again[0].text != answers[1].text
    assert (typed.text, typed.transcript) == (answers[0].text, ""), "written or spoken, the same question"
