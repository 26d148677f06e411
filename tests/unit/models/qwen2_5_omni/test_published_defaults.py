"""The defaults are those of the published model: the values that transformers' generate() uses if the caller sets none.

The system prompt for speech is the model card's.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen2_5OmniToken2WavModel,
    WhisperFeatureExtractor,
)

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.engine.requests.conflicts import EngineTraits
from omni_stage.engine.requests.lowering import Lowering
from omni_stage.engine.requests.sampling import resolve_sampling
from omni_stage.errors import ConfigurationError, InvalidMediaError
from omni_stage.models.component import AudioPart, ChatMessage, Component, EdgeInput, StageRequest, TextPart, UserPrompt
from omni_stage.models.qwen2_5_omni.checkpoint import DEFAULT_VOICE, read_checkpoint, read_voices
from omni_stage.models.qwen2_5_omni.model_configs import pick_talker
from omni_stage.models.qwen2_5_omni.talker import component as talker
from omni_stage.models.qwen2_5_omni.talker.model import _find_never_sampled
from omni_stage.models.qwen2_5_omni.thinker import component as thinker
from omni_stage.models.qwen2_5_omni.thinker.component import (
    SPEECH_SYSTEM_PROMPT,
    read_audio_limit,
    read_text_ends,
    read_text_sampling,
)
from omni_stage.models.qwen2_5_omni.token2wav import component as token2wav
from omni_stage.models.shared.prompts import PromptBuilder, prepare_audio
from support.engines.omni_stages import stage_config

GENERATE = {
    name: parameter.default
    for name, parameter in inspect.signature(Qwen2_5OmniForConditionalGeneration.generate).parameters.items()
}
"""The defaults of transformers' generate(), by name."""
# generation_config.json and config.json's token ids of the thinker, as Qwen/Qwen2.5-Omni-7B and -3B have them.
RELEASED_GENERATION_CONFIG = {"_from_model_config": True, "transformers_version": "4.50.0.dev0"}
RELEASED_TEXT_IDS = {"bos_token_id": 151644, "eos_token_id": 151645, "pad_token_id": 151643}
VOCAB_SIZE = 152_064


def lower(component: Component, request: StageRequest, generation: dict[str, Any]) -> Any:
    """Returns the parameters that vLLM gets for a request to a stage without configured default sampling."""
    sampling = resolve_sampling(
        request.sampling, seed=None, config_default=SamplingDefaults(), component_default=component.default_sampling
    )
    traits = EngineTraits(max_model_len=32_768, vocab_size=None)
    lowering = Lowering(component, traits, generation, captures_rows=False)
    prepared = component.prepare(request)
    return lowering.lower(request, prepared, lowering.sampling_params(_with(request, sampling), prepared))[1]


def _with(request: StageRequest, sampling: SamplingDefaults) -> StageRequest:
    return StageRequest(request_id=request.request_id, source=request.source, sampling=sampling)


def ask(source: UserPrompt | EdgeInput, **changes: Any) -> StageRequest:
    return StageRequest(**{"request_id": "r", "source": source, "sampling": SamplingDefaults(), **changes})


def write(folder: Path, generation: dict[str, Any] | None, config: dict[str, Any]) -> Path:
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("generation", "temperature"),
    [
        pytest.param(None, 0.0, id="no file"),
        pytest.param(RELEASED_GENERATION_CONFIG, 0.0, id="the release's"),
        pytest.param({"do_sample": False, "temperature": 0.7}, 0.0, id="a temperature without do_sample"),
        pytest.param({"do_sample": None}, 0.0, id="do_sample is null"),
        pytest.param({"do_sample": True, "temperature": 0.7}, None, id="do_sample: the file's own values"),
    ],
)
def test_thinker_is_greedy_unless_the_checkpoint_samples(
    tmp_path: Path, generation: dict[str, Any] | None, temperature: float | None
) -> None:
    sampling = read_text_sampling(write(tmp_path, generation, {}))
    assert sampling == SamplingDefaults(temperature=temperature, max_tokens=GENERATE["thinker_max_new_tokens"])
    settings = GenerationConfig(**(generation or {}))
    assert bool(settings.do_sample) is (temperature is None), "transformers decides the same"


@pytest.mark.parametrize(
    ("thinker_config", "generation", "tokenizer_end", "expected"),
    [
        pytest.param(RELEASED_TEXT_IDS, RELEASED_GENERATION_CONFIG, 151645, (151645,), id="the release's"),
        pytest.param(RELEASED_TEXT_IDS, None, None, (151645,), id="a tokenizer that names none"),
        pytest.param({"eos_token_id": [7, 5, 7]}, None, None, (5, 7), id="several"),
        pytest.param({"text_config": {"eos_token_id": 9}}, None, None, (9,), id="of the text's part"),
        pytest.param({}, {"eos_token_id": [3]}, None, (3,), id="of generation_config"),
        pytest.param({}, None, 4, (), id="the tokenizer's, which vLLM adds itself"),
        pytest.param({"eos_token_id": 0}, None, None, (0,), id="0 is a token, not none"),
    ],
)
def test_thinker_ends_where_the_published_one_does(
    tmp_path: Path,
    thinker_config: dict[str, Any],
    generation: dict[str, Any] | None,
    tokenizer_end: int | None,
    expected: tuple[int, ...],
) -> None:
    folder = write(tmp_path, generation, {"thinker_config": thinker_config})
    assert read_text_ends(folder, vocab_size=VOCAB_SIZE, tokenizer_end=tokenizer_end) == expected


def test_end_of_text_is_what_transformers_derives_from_the_released_configuration() -> None:
    config = Qwen2_5OmniConfig(thinker_config=RELEASED_TEXT_IDS)
    assert GenerationConfig.from_model_config(config.thinker_config).eos_token_id == 151645


@pytest.mark.parametrize(
    ("thinker_config", "words"),
    [
        pytest.param({"bos_token_id": 1}, "names a token that ends the text", id="nothing names one"),
        pytest.param({"eos_token_id": VOCAB_SIZE}, "not in the vocabulary", id="outside the vocabulary"),
        pytest.param({"eos_token_id": -1}, "not in the vocabulary", id="negative"),
        pytest.param({"eos_token_id": "151645"}, "not in the vocabulary", id="a word"),
    ],
)
def test_a_text_without_an_end_cannot_start(tmp_path: Path, thinker_config: dict[str, Any], words: str) -> None:
    folder = write(tmp_path, RELEASED_GENERATION_CONFIG, {"thinker_config": thinker_config})
    with pytest.raises(ConfigurationError, match=words):
        read_text_ends(folder, vocab_size=VOCAB_SIZE, tokenizer_end=None)


def test_what_vllm_gets_for_the_thinker(tiny_checkpoint: Path) -> None:
    component = thinker.build_component(stage_config("thinker", tiny_checkpoint))
    end = AutoTokenizer.from_pretrained(tiny_checkpoint).convert_tokens_to_ids("<|im_end|>")
    params = lower(component, ask(UserPrompt(text="Hi")), {})
    assert (params.temperature, params.max_tokens, params.repetition_penalty) == (0.0, 1024, 1.0)
    assert params.stop_token_ids == [end]
    assert not params.logit_bias
    endless = ask(UserPrompt(text="Hi"), sampling=SamplingDefaults(ignore_eos=True))
    assert lower(component, endless, {}).stop_token_ids == []


def test_what_vllm_gets_for_the_talker(tiny_checkpoint: Path) -> None:
    """The talker's sampling parameters are those of transformers' generate(), not of the checkpoint's files."""
    component = talker.build_component(stage_config("talker", tiny_checkpoint))
    params = lower(component, ask(component.warmup_request().source), {})
    given = (params.temperature, params.top_p, params.top_k, params.repetition_penalty, params.max_tokens)
    names = ("temperature", "top_p", "top_k", "repetition_penalty", "max_new_tokens")
    assert given == tuple(GENERATE[f"talker_{name}"] for name in names) == (0.9, 0.8, 40, 1.05, 4096)
    assert GENERATE["talker_do_sample"] is True
    assert params.stop_token_ids == sorted(read_checkpoint(tiny_checkpoint).codec.stop_ids)


def test_released_talker_stops_at_8292_and_8294_and_writes_only_codes_with_audio() -> None:
    """The talker's vocabulary has 8,448 ids, but token2wav embeds only the first 8,194.

    transformers' default configuration is that of the 7B model.
    """
    config = Qwen2_5OmniConfig()
    never = _find_never_sampled(pick_talker(config))
    sampled = torch.nonzero(~never).flatten().tolist()
    assert sampled == [*range(config.token2wav_config.dit_config.num_embeds + 1), *GENERATE["talker_eos_token_id"]]
    assert sampled[-3:] == [8193, 8292, 8294]
    assert never.numel() == 8448


def test_released_talker_attends_to_everything() -> None:
    """The talker's configuration sets sliding_window to 32,768, but it does not apply: use_sliding_window is false."""
    config = Qwen2_5OmniConfig(talker_config={"sliding_window": 32_768, "use_sliding_window": False})
    part = pick_talker(config)
    assert part.sliding_window is None
    assert set(part.layer_types) == {"full_attention"}


def test_token2wav_runs_in_float32_with_the_published_solver(tiny_checkpoint: Path) -> None:
    component = token2wav.build_component(stage_config("token2wav", tiny_checkpoint))
    assert component.engine_kwargs()["dtype"] == "float32"
    published = inspect.signature(Qwen2_5OmniToken2WavModel.forward).parameters
    ours = (component.default_sampling.num_inference_steps, component.default_sampling.guidance_scale)
    assert ours == (published["num_steps"].default, published["guidance_scale"].default) == (10, 0.5)


def test_default_voice_is_first_whatever_the_files_order(tiny_checkpoint: Path, tmp_path: Path) -> None:
    speakers = torch.load(tiny_checkpoint / "spk_dict.pt", weights_only=True)
    torch.save(dict(sorted(speakers.items(), reverse=True)), tmp_path / "spk_dict.pt")
    assert next(iter(torch.load(tmp_path / "spk_dict.pt", weights_only=True))) == "Ethan"
    assert list(read_voices(tmp_path))[:2] == ["Chelsie", "Ethan"]
    assert GENERATE["speaker"] == DEFAULT_VOICE


def test_configured_voice_and_sampling_are_not_the_thinkers_to_share(tiny_checkpoint: Path) -> None:
    """The talker gets its own, empty generation_config, because the thinker's end tokens are no codec tokens."""
    folder = Path(talker.build_component(stage_config("talker", tiny_checkpoint)).engine_kwargs()["generation_config"])
    assert GenerationConfig.from_pretrained(folder).to_diff_dict().keys() <= {"transformers_version"}


@pytest.fixture(scope="module")
def builder(tiny_checkpoint: Path) -> PromptBuilder:
    return PromptBuilder.load(
        read_checkpoint(tiny_checkpoint),
        max_audio_samples=read_audio_limit(tiny_checkpoint),
        speech_system_prompt=SPEECH_SYSTEM_PROMPT,
    )


def chat(*messages: tuple[str, str]) -> UserPrompt:
    return UserPrompt(messages=[ChatMessage(role, [TextPart(text)]) for role, text in messages])


SYSTEMS: dict[str, tuple[tuple[tuple[str, str], ...], bool, str]] = {
    "spoken": ((("user", "Hi"),), True, SPEECH_SYSTEM_PROMPT),
    "text alone": ((("user", "Hi"),), False, "You are a helpful assistant."),
    "spoken, with the caller's": ((("system", "Be brief."), ("user", "Hi")), True, "Be brief."),
    "text alone, with the caller's": ((("system", "Be brief."), ("user", "Hi")), False, "Be brief."),
    "spoken, a later system message": ((("user", "Hi"), ("system", "Be brief.")), True, SPEECH_SYSTEM_PROMPT),
}


@pytest.mark.parametrize("case", SYSTEMS)
def test_system_message(builder: PromptBuilder, tiny_checkpoint: Path, case: str) -> None:
    messages, speaks, system = SYSTEMS[case]
    prompt = builder.build(chat(*messages), speaks=speaks)
    text = AutoTokenizer.from_pretrained(tiny_checkpoint).decode(prompt["prompt_token_ids"])
    assert text.startswith(f"<|im_start|>system\n{system}<|im_end|>\n")


def test_speech_prompt_is_the_published_one_letter_by_letter() -> None:
    """The prompt is quoted from the model card of Qwen/Qwen2.5-Omni-7B, section "Prompt for audio output"."""
    assert SPEECH_SYSTEM_PROMPT == (
        "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and "
        "visual inputs, as well as generating text and speech."
    )


def test_text_and_token_ids_get_no_system_message(builder: PromptBuilder) -> None:
    for prompt in (UserPrompt(text="Hello"), UserPrompt(token_ids=[5, 6])):
        assert builder.build(prompt, speaks=True) == builder.build(prompt)


@pytest.mark.parametrize("want_tensors", [True, False])
def test_a_request_is_spoken_if_a_stage_reads_it(tiny_checkpoint: Path, want_tensors: bool) -> None:
    component = thinker.build_component(stage_config("thinker", tiny_checkpoint))
    prompt = component.prepare(ask(chat(("user", "Hi")), want_tensors=want_tensors)).prompt
    tokenizer = component._prompts._tokenizer
    assert ("virtual human" in tokenizer.decode(prompt["prompt_token_ids"])) is want_tensors


def without_downstream(config: StageConfig) -> StageConfig:
    return config.model_copy(update={"downstream": []})


def test_a_thinker_alone_keeps_the_templates_system_message(tiny_checkpoint: Path) -> None:
    component = thinker.build_component(without_downstream(stage_config("thinker", tiny_checkpoint)))
    prompt = component.prepare(ask(chat(("user", "Hi")))).prompt
    assert "helpful assistant" in component._prompts._tokenizer.decode(prompt["prompt_token_ids"])


def test_audio_beyond_what_the_feature_extractor_takes_is_refused(tmp_path: Path) -> None:
    """With chunk_length 300, as published, the feature extractor would silently cut longer audio at 300 s."""
    extractor = WhisperFeatureExtractor(feature_size=128, hop_length=160, chunk_length=300, n_fft=400)
    extractor.save_pretrained(tmp_path)
    limit = read_audio_limit(tmp_path)
    assert limit == 300 * 16_000 == extractor.n_samples
    rate = 1_000
    assert prepare_audio(AudioPart(torch.zeros(300 * rate).numpy(), rate), limit, "x").size == limit
    with pytest.raises(InvalidMediaError, match="longer than 300 s") as caught:
        prepare_audio(AudioPart(torch.zeros(300 * rate + 1).numpy(), rate), limit, "x")
    assert caught.value.details.limit == "300 s"


def test_a_checkpoint_without_a_feature_extractor_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"preprocessor_config\.json"):
        read_audio_limit(tmp_path)
