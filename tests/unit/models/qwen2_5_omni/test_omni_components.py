"""Qwen2.5-Omni's components without an engine: factories, engine arguments, emitters, voices, sampling."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig, Qwen2_5OmniConfig

from omni_proto.pipeline.components import EngineKind, refuse_sampling
from omni_proto.stage_config import Modality, SamplingDefaults, StageConfig
from omni_stage.errors import InvalidRequestError, ModelExecutionError
from omni_stage.models.component import (
    Component,
    EdgeInput,
    EngineStep,
    FinishReason,
    KnowsFirstAudio,
    StageRequest,
    TakesStreams,
    UserPrompt,
)
from omni_stage.models.qwen2_5_omni.model_configs import pick_talker, pick_token2wav
from omni_stage.models.qwen2_5_omni.thinker import component as thinker
from omni_stage.models.qwen2_5_omni.token2wav import component as token2wav
from omni_stage.models.registry import installed_families
from omni_stage.models.shared.thinker import ROWS_CACHE_BYTES, SpokenTokens
from support.engines.omni_stages import stage_config

STAGES = ("thinker", "talker", "token2wav")


def build(stage: str, checkpoint: Path) -> Component:
    return installed_families().factory(f"qwen2_5_omni/{stage}")(stage_config(stage, checkpoint))


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_component_says_of_itself(tiny_checkpoint: Path, stage: str) -> None:
    component = build(stage, tiny_checkpoint)
    facts = component.facts
    assert facts.id == f"qwen2_5_omni/{stage}"
    assert facts == installed_families().component(facts.id).facts
    assert facts.reads == (component.input_schema.id if component.input_schema else None)
    assert facts.publishes == (component.output_schema.id if component.output_schema else None)
    assert isinstance(component, TakesStreams) is facts.streams_input
    assert isinstance(component, KnowsFirstAudio) is (stage != "token2wav")
    assert facts.kind is (EngineKind.DIFFUSION if stage == "token2wav" else EngineKind.AUTOREGRESSIVE)
    expected = {"thinker": {Modality.TEXT}, "talker": set(), "token2wav": {Modality.AUDIO}}
    assert set(facts.outputs) == expected[stage]
    assert list(component.voices) == ([] if stage == "thinker" else ["Chelsie", "Ethan", "Aiden"])
    assert refuse_sampling(facts, component.default_sampling, is_streamed=facts.streams_input) == []
    pickle.loads(pickle.dumps(component.engine_kwargs()))  # noqa: S301 - our own bytes, as a spawned engine gets them


def test_the_thinker_gives_one_step_more_than_the_talker_before_the_first_audio(tiny_checkpoint: Path) -> None:
    """The thinker's first step has only the prompt's rows, and no row of the reply."""
    thinker, talker = (build(stage, tiny_checkpoint) for stage in STAGES[:2])
    assert isinstance(thinker, KnowsFirstAudio)
    assert isinstance(talker, KnowsFirstAudio)
    assert thinker.first_audio_steps == talker.first_audio_steps + 1


def test_neighbours_agree_on_their_edge(tiny_checkpoint: Path) -> None:
    components = [build(stage, tiny_checkpoint) for stage in STAGES]
    assert components[0].input_schema is None
    assert components[0].output_schema == components[1].input_schema
    assert components[1].output_schema == components[2].input_schema
    assert components[2].output_schema is None


def test_edge_has_the_checkpoints_dtype_whatever_the_stage_computes_in(tiny_checkpoint: Path) -> None:
    config = stage_config("thinker", tiny_checkpoint, dtype="bfloat16")
    schema = thinker.build_component(config).output_schema
    assert {spec.name: spec.dtype for spec in schema.tensors}["x"] == "float32"
    emitter = thinker.ThinkerEmitter(want_tensors=True, dtype=torch.float32, spoken=SpokenTokens(None, str))
    step = EngineStep(token_ids=[5], prompt_token_ids=[1, 2], tensors={"rows": torch.ones(2, 4, dtype=torch.bfloat16)})
    assert emitter.emit(step).tensors["x"].dtype is torch.float32


def without(config: StageConfig, **changes: Any) -> StageConfig:
    return config.model_copy(update=changes)


def test_rows_are_captured_only_for_a_reader(tiny_checkpoint: Path) -> None:
    config = stage_config("thinker", tiny_checkpoint)
    capture = thinker.build_component(config).engine_kwargs()["additional_config"]["omni"]
    assert capture == {"capture_rows": True, "capture_mrope": True, "rows_cache_bytes": ROWS_CACHE_BYTES}
    alone = thinker.build_component(without(config, downstream=[]))
    assert alone.engine_kwargs()["additional_config"] == {}
    assert not alone.warmup_request().want_tensors


@pytest.mark.parametrize("stage", STAGES)
def test_warm_up_can_be_prepared(tiny_checkpoint: Path, stage: str) -> None:
    component = build(stage, tiny_checkpoint)
    request = component.warmup_request()
    assert refuse_sampling(component.facts, request.sampling, is_streamed=component.facts.streams_input) == []
    prepared = component.prepare(request)
    assert prepared.finished is None
    assert component.emitter(request, prepared) is not None


def request(source: UserPrompt | EdgeInput, **changes: Any) -> StageRequest:
    return StageRequest(**{"request_id": "r", "source": source, "sampling": SamplingDefaults(), **changes})


REFUSED: dict[str, tuple[str, StageRequest, str]] = {
    "tensors to the thinker": ("thinker", request(EdgeInput({})), "reads a prompt"),
    "voice that nobody below has": ("thinker", request(UserPrompt(text="Hi"), voice="Eve"), "voices: Chelsie, Ethan"),
    "text to the talker": ("talker", request(UserPrompt(text="Hi")), "reads tensors of a thinker"),
    "text to token2wav": ("token2wav", request(UserPrompt(text="Hi")), "reads tensors of a talker"),
    "voice of the talker": ("talker", request(EdgeInput({}), voice="Eve"), "voices: Chelsie, Ethan"),
    "voice of token2wav": ("token2wav", request(EdgeInput({}), voice="Adam"), "voices: Chelsie, Ethan"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_input(tiny_checkpoint: Path, case: str) -> None:
    stage, asked, words = REFUSED[case]
    with pytest.raises(InvalidRequestError, match=words):
        build(stage, tiny_checkpoint).prepare(asked)


def test_voices_of_a_talker_with_a_checkpoint_of_its_own_are_left_to_the_talker(tiny_checkpoint: Path) -> None:
    config = stage_config("thinker", tiny_checkpoint)
    downstream = [edge.model_copy(update={"other_model": True}) for edge in config.downstream]
    component = thinker.build_component(config.model_copy(update={"downstream": downstream}))
    assert component.known_voices == ()
    assert component.prepare(request(UserPrompt(text="Hi"), voice="Eve")).finished is None


SAMPLING: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "thinker takes stop texts": ("thinker", {"stop": ["."], "temperature": 0.5}, None),
    "thinker has no steps": ("thinker", {"num_inference_steps": 3}, "num_inference_steps"),
    "talker has no guidance": ("talker", {"guidance_scale": 1.0}, "guidance_scale"),
    "talker writes no text": ("talker", {"stop": ["."]}, "stop"),
    "token2wav writes no tokens": ("token2wav", {"max_tokens": 5}, "max_tokens"),
    "token2wav needs two points": ("token2wav", {"num_inference_steps": 1}, "num_inference_steps"),
    "token2wav takes its own": ("token2wav", {"num_inference_steps": 2, "guidance_scale": 0.0, "seed": 1}, None),
}


@pytest.mark.parametrize("case", SAMPLING)
def test_sampling(case: str) -> None:
    stage, given, field = SAMPLING[case]
    facts = installed_families().component(f"qwen2_5_omni/{stage}").facts
    objections = refuse_sampling(facts, SamplingDefaults(**given), is_streamed=False)
    assert [objection.field for objection in objections] == ([] if field is None else [field])


def test_thinker_pairs_rows_with_tokens() -> None:
    """A row is published with the token at its position, so a sampled token is held back until its row exists."""
    emitter = thinker.ThinkerEmitter(want_tensors=True, dtype=torch.float32, spoken=SpokenTokens(None, str))
    first = emitter.emit(
        EngineStep(
            token_ids=[7],
            prompt_token_ids=[1, 2, 3],
            tensors={
                "rows": torch.zeros(3, 4),
                "mrope_positions": torch.zeros(3, 3, dtype=torch.int64),
                "mrope_delta": torch.zeros(1, dtype=torch.int64),
            },
        )
    )
    assert first.tensors["token_ids"].tolist() == [1, 2, 3]
    second = emitter.emit(EngineStep(token_ids=[8, 9], tensors={"rows": torch.ones(2, 4)}))
    assert second.tensors["token_ids"].tolist() == [7, 8]
    assert second.tensors.keys() == {"x", "token_ids"}
    last = emitter.emit(EngineStep(finish_reason=FinishReason.STOP))
    assert (last.tensors, last.finish_reason) == ({}, FinishReason.STOP)
    with pytest.raises(ModelExecutionError, match="more rows"):
        emitter.emit(EngineStep(tensors={"rows": torch.ones(2, 4)}))


def test_talker_leaves_out_the_end(tiny_checkpoint: Path) -> None:
    """End tokens are not sent to token2wav as codes."""
    component = build("talker", tiny_checkpoint)
    asked = component.warmup_request()
    emitter = component.emitter(asked, component.prepare(asked))
    step = emitter.emit(EngineStep(token_ids=[4, 131], finish_reason=FinishReason.STOP))
    assert step.token_ids == [4, 131]
    assert step.tensors["codes"].tolist() == [4]
    assert emitter.emit(EngineStep(token_ids=[129], finish_reason=FinishReason.STOP)).tensors == {}


def test_talker_end_holds_unless_ignored(tiny_checkpoint: Path) -> None:
    """The codec's end tokens stop the talker. With ignore_eos they are never sampled."""
    component = build("talker", tiny_checkpoint)
    tensors = component.warmup_request().source
    assert isinstance(tensors, EdgeInput)
    plain = component.prepare(request(tensors))
    assert (tuple(plain.stop_token_ids), tuple(plain.suppress_token_ids)) == ((129, 131), ())
    endless = component.prepare(request(tensors, sampling=SamplingDefaults(ignore_eos=True)))
    assert (tuple(endless.stop_token_ids), tuple(endless.suppress_token_ids)) == ((), (129, 131))


def test_token2wav_seed_is_the_requests_or_random(tiny_checkpoint: Path) -> None:
    component = build("token2wav", tiny_checkpoint)
    source = EdgeInput({"codes": torch.arange(4)})
    payloads = [component.prepare(request(source)).additional_information for _ in range(2)]
    seeded = component.prepare(request(source, sampling=SamplingDefaults(seed=5, guidance_scale=0.0)))
    assert seeded.additional_information is not None
    assert seeded.additional_information.list("seed") == [5]
    assert seeded.additional_information.list("guidance") == [0.0]
    assert seeded.additional_information.list("voice") == ["Chelsie"]
    assert payloads[0] is not None
    assert payloads[1] is not None
    assert payloads[0].list("seed") != payloads[1].list("seed")


def test_token2wav_end_needs_audio_of_every_code() -> None:
    emitter = token2wav.Token2WavEmitter(samples=960)
    with pytest.raises(ModelExecutionError, match="without audio"):
        emitter.emit(EngineStep(finish_reason=FinishReason.DIFFUSION_DONE))
    step = emitter.emit(EngineStep(tensors={"output": torch.ones(960)}, finish_reason=FinishReason.DIFFUSION_DONE))
    assert step.audio is not None
    assert step.audio.shape == (960,)
    for wrong in (torch.ones(959), torch.ones(1, 960), torch.ones(480), torch.ones(960, dtype=torch.float64)):
        with pytest.raises(ModelExecutionError, match="it must be float32"):
            emitter.emit(EngineStep(tensors={"output": wrong}, finish_reason=FinishReason.DIFFUSION_DONE))


@pytest.mark.parametrize(
    ("codes", "steps", "work"), [(1, 2, 1), (12, 10, 12), (12, 2, 2), (4096, 10, 4096), (10, 1000, 1110), (1, 10, 1)]
)
def test_work_is_counted_in_codes_at_the_default_steps(codes: int, steps: int, work: int) -> None:
    """Work: the number of codes, times the solver's intervals divided by the default's nine, rounded up."""
    assert token2wav.count_work(codes, steps) == work


def test_a_request_is_as_many_tokens_as_its_work_and_no_more_than_fit(tiny_checkpoint: Path) -> None:
    """A request's prompt has one placeholder token per unit of work. More work than max_model_len is refused."""

    def ask(codes: int, steps: int | None = None) -> StageRequest:
        source = EdgeInput({"codes": torch.zeros(codes, dtype=torch.int64)})
        return StageRequest(request_id="r", source=source, sampling=SamplingDefaults(num_inference_steps=steps))

    component = build("token2wav", tiny_checkpoint)
    assert component.prepare(ask(100)).prompt == {"prompt_token_ids": [0] * 100}
    assert component.prepare(ask(100, 28)).prompt == {"prompt_token_ids": [0] * 300}
    longest = component.engine_kwargs()["max_model_len"]
    assert len(component.prepare(ask(longest)).prompt["prompt_token_ids"]) == longest
    with pytest.raises(InvalidRequestError, match="take fewer steps") as caught:
        component.prepare(ask(longest, 11))
    assert caught.value.details.field == "sampling.num_inference_steps"
    small = installed_families().factory("qwen2_5_omni/token2wav")(
        stage_config("token2wav", tiny_checkpoint, max_model_len=100)
    )
    with pytest.raises(InvalidRequestError, match="at most 100 fit"):
        small.prepare(ask(101))


def test_configurations_are_picked_out(tiny_checkpoint: Path) -> None:
    dummy = PreTrainedConfig()
    for pick in (pick_talker, pick_token2wav):
        assert pick(dummy) is dummy, "vLLM calls it with a dummy configuration"
        assert pickle.loads(pickle.dumps(pick)) is pick  # noqa: S301 - our own bytes
    part = pick_talker(Qwen2_5OmniConfig.from_pretrained(tiny_checkpoint))
    assert (part.architectures, part.qkv_bias, part.omni_code_limit) == (["OmniQwen2_5Talker"], True, 130)
    part = pick_token2wav(Qwen2_5OmniConfig.from_pretrained(tiny_checkpoint))
    assert part.architectures == ["OmniQwen2_5Token2Wav"]
    assert part.num_key_value_heads == part.num_attention_heads
