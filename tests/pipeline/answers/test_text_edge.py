"""Two LLMs with a text edge between them, each with a model of its own: the second answers what the first wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen2ForCausalLM

from omni_proto.client import GenerateArguments, OmniClient, user
from support.models.generic_checkpoint import write_tiny_text_checkpoint
from support.processes.forked_pipelines import fork_pipeline
from support.processes.pipelines import RunningPipeline

pytestmark = pytest.mark.pipeline

PIPELINE = """
apiVersion: omnipipeline.io/v1alpha1
kind: OmniPipeline
metadata: {name: two-llms}
spec:
  stages:
  - name: writer
    component: generic/llm
    model: {uri: "file:///models/writer"}
    outputs: [Text]
    engineArgs: {dtype: float32, maxModelLen: 128, kvCacheMemoryMib: 8, enforceEager: true, blockSize: 32}
    defaultSampling: {temperature: 0, maxTokens: 12, ignoreEos: true}
  - name: reader
    component: generic/llm
    model: {uri: "file:///models/reader"}
    inputs: [{from: writer, mode: Full}]
    outputs: [Text]
    engineArgs: {dtype: float32, maxModelLen: 256, kvCacheMemoryMib: 8, enforceEager: true, blockSize: 32}
    defaultSampling: {temperature: 0, maxTokens: 9, ignoreEos: true}
"""
GIVEN = "Hello, how are you \u4f60\u597d?"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_text_checkpoint(tmp_path_factory.mktemp("reader"), seed=7)


@pytest.fixture(scope="module")
def running(reader: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPipeline]:
    folder = tmp_path_factory.mktemp("two-llms")
    writer = write_tiny_text_checkpoint(folder / "writer", seed=5)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    with fork_pipeline(folder / "pipeline.yaml", {"writer": writer, "reader": reader}, folder) as pipeline:
        yield pipeline


def expect_answer(reader: Path, text: str) -> tuple[list[int], list[int]]:
    """Returns the prompt that the text becomes in the reader, and what transformers answers to it."""
    tokenizer = AutoTokenizer.from_pretrained(reader)
    prompt = tokenizer(f"<|im_start|>user\n{text.strip()}<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    model = Qwen2ForCausalLM.from_pretrained(reader)
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=9, min_new_tokens=9, do_sample=False)
    return prompt, ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("given", ["", GIVEN])
def test_the_second_answers_what_the_first_wrote(running: RunningPipeline, reader: Path, given: str) -> None:
    reply: GenerateArguments = {"reply": given} if given else {}
    with OmniClient(running.endpoint) as client:
        result = client.run(chat=user("What is a pipeline?"), include_token_ids=True, **reply)
    assert set(result.texts) == {"writer", "reader"}
    written = result.texts["writer"]
    assert written == given or not given
    prompt, answer = expect_answer(reader, written)
    assert result.prompt_token_ids["reader"] == prompt
    assert result.token_ids["reader"] == answer
    assert result.text == result.texts["reader"]


def test_the_answer_s_sampling_goes_to_the_second(running: RunningPipeline) -> None:
    with OmniClient(running.endpoint) as client:
        assert client.get_stage().answering_stage == "reader"
        result = client.run(chat=user("Hi"), sampling={"reader": {"max_tokens": 4}})
    assert result.finished["reader"].usage.completion_tokens == 4
    assert result.finished["writer"].usage.completion_tokens == 12
