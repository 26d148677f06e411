"""OmniLLM with one stage: a pipeline file runs on the same engine without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

import omni_stage
from omni_stage.errors import InvalidRequestError
from omni_stage.models.component import ChatMessage, FinishReason, ImagePart, TextPart, UserPrompt
from support.models.generic_checkpoint import write_tiny_text_checkpoint

pytestmark = pytest.mark.engine

PIPELINE = """
apiVersion: omnipipeline.io/v1alpha1
kind: OmniPipeline
metadata: {name: text}
spec:
  model: {uri: hf://org/tiny}
  stages:
  - name: llm
    component: generic/llm
    outputs: [Text]
    engineArgs: {dtype: float32, maxModelLen: 128, kvCacheMemoryMib: 8, enforceEager: true, blockSize: 32}
    defaultSampling: {temperature: 0, maxTokens: 9, ignoreEos: true}
"""


def test_a_pipeline_file_offline(tmp_path: Path) -> None:
    checkpoint = write_tiny_text_checkpoint(tmp_path / "tiny", seed=5)
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE)
    with omni_stage.OmniLLM(file, model_dir=checkpoint) as llm:
        results = llm.generate(["Hello", "one two three"])
        assert [len(result.stages["llm"].token_ids) for result in results] == [9, 9]
        assert all(result.text for result in results)
        assert all(result.audio is None and result.sample_rate_hz == 0 for result in results)
        stage = results[0].stages["llm"]
        assert stage.finish_reason is FinishReason.LENGTH
        assert stage.tensors == {}
        again = llm.generate([UserPrompt(token_ids=stage.prompt_token_ids)], {"llm": {"max_tokens": 4}})
        assert again[0].stages["llm"].token_ids == stage.token_ids[:4]
        different = llm.generate(["Hello", "Hello"], [None, {"llm": {"max_tokens": 2}}])
        assert [len(result.stages["llm"].token_ids) for result in different] == [9, 2]
        with pytest.raises(InvalidRequestError, match="1 entries for 2 prompts"):
            llm.generate(["a", "b"], [None])
        with pytest.raises(InvalidRequestError, match="does not return Audio"):
            llm.generate("a", modalities=["Audio"])
        with pytest.raises(InvalidRequestError, match="speaks"):
            llm.generate("a", voice="Chelsie")
        with pytest.raises(InvalidRequestError, match="reads text only") as caught:
            llm.generate([[ChatMessage("user", [TextPart("what is this"), ImagePart(None)])]])  # type: ignore[arg-type]
        assert "in stage llm" in caught.value.__notes__
        # One failing prompt does not harm the engine.
        assert llm.generate("Hello")[0].text == results[0].text
    with pytest.raises(InvalidRequestError, match="shut down"):
        llm.generate("Hello")
