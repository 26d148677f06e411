"""The three stages beyond parity: ends of streams, voices, seeds, sampling settings, and requests that are refused."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from omni_stage.errors import InvalidRequestError, InvalidTensorError, OmniStageError, PromptTooLongError
from omni_stage.models.component import AudioPart, ChatMessage, FinishReason, TextPart, UserPrompt
from omni_stage.models.shared import talker_feed
from support.engines.omni_stages import AUDIO_TOLERANCE, OmniStages, check_parity, run_omni_stages
from support.media.samples import make_audio, make_image
from support.models.reference import (
    PLAIN_SYSTEM_PROMPT,
    ReferenceModel,
    ReferencePrompt,
    ReferenceSettings,
    load_reference,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0}
# With this checkpoint both the thinker's reply and the talker's codes to this prompt end with their end token.
ENDING = ReferencePrompt("Good morning", system=PLAIN_SYSTEM_PROMPT)
LONG = ReferenceSettings(thinker_tokens=48, talker_tokens=48)


@pytest.fixture(scope="module")
def checkpoint(make_tiny_checkpoint: Callable[..., Path]) -> Path:
    """The tiny checkpoint of shape "gqa" and seed 0."""
    return make_tiny_checkpoint(0, "gqa")


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> ReferenceModel:
    """The checkpoint loaded by transformers."""
    return load_reference(checkpoint)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stages(checkpoint: Path) -> AsyncIterator[OmniStages]:
    """The three stages, for the whole module."""
    async with run_omni_stages(checkpoint) as running:
        yield running


async def test_ends_of_text_and_of_the_codec_stream(stages: OmniStages, reference: ReferenceModel) -> None:
    expected = reference.run(ENDING, LONG)
    ours = await stages.run_chain(ENDING, LONG)
    check_parity(ours, expected)
    assert len(expected.thinker_token_ids) < LONG.thinker_tokens
    assert len(expected.codes) == len(expected.codec_token_ids) - 1 < LONG.talker_tokens
    assert [ours[name].finish_reason for name in ours] == [
        FinishReason.STOP,
        FinishReason.STOP,
        FinishReason.DIFFUSION_DONE,
    ]


async def test_repetition_penalty_counts_the_codec_prompt(stages: OmniStages, reference: ReferenceModel) -> None:
    settings = dataclasses.replace(LONG, repetition_penalty=1.3)
    prompt = ReferencePrompt("Where does the river start?")  # spoken long enough for a penalty to change it
    expected = reference.run(prompt, settings)
    check_parity(await stages.run_chain(prompt, settings), expected)
    assert expected.codes != reference.run(prompt, LONG).codes


@pytest.mark.parametrize("voice", ["Ethan", "Chelsie"])
async def test_voice_by_name(stages: OmniStages, reference: ReferenceModel, voice: str) -> None:
    settings = dataclasses.replace(LONG, voice=voice)
    check_parity(await stages.run_chain(ENDING, settings), reference.run(ENDING, settings))


async def test_no_voice_is_the_default_voice(stages: OmniStages, reference: ReferenceModel) -> None:
    settings = dataclasses.replace(LONG, voice="")
    check_parity(await stages.run_chain(ENDING, settings), reference.run(ENDING, LONG))


async def test_text_and_token_ids_are_the_prompt_as_it_is(stages: OmniStages, reference: ReferenceModel) -> None:
    text = reference.processor.tokenizer.apply_chat_template(
        [{"role": "user", "content": ENDING.text}],
        chat_template=reference.processor.chat_template,
        tokenize=False,
        add_generation_prompt=True,
    )
    expected = reference.run(ENDING, LONG)
    for prompt in (UserPrompt(text=text), UserPrompt(token_ids=expected.prompt_token_ids)):
        thinker = await stages.ask("thinker", prompt, **GREEDY, max_tokens=48)
        assert thinker.prompt_token_ids == expected.prompt_token_ids
        assert thinker.token_ids == expected.thinker_token_ids


async def test_a_thinker_without_sampling_options_is_greedy(stages: OmniStages, reference: ReferenceModel) -> None:
    """Without sampling settings the thinker is greedy, and ends where transformers' thinker ends."""
    thinker = await stages.ask("thinker", ENDING.to_user_prompt())
    assert thinker.token_ids == reference.run(ENDING, LONG).thinker_token_ids
    assert thinker.finish_reason is FinishReason.STOP


async def test_nothing_is_captured_that_nobody_reads(stages: OmniStages) -> None:
    thinker = await stages.ask("thinker", ENDING.to_user_prompt(), want_tensors=False, **GREEDY, max_tokens=4)
    assert thinker.tensors == {}
    assert len(thinker.token_ids) == 4


async def test_image_positions_reach_the_talker(stages: OmniStages, reference: ReferenceModel) -> None:
    """The talker's codes depend on the thinker's M-RoPE positions: with plain positions they differ."""
    prompt = ReferencePrompt("What do you see?", images=[make_image(2, 168, 112)])
    expected = reference.run(prompt, LONG)
    thinker = await stages.ask("thinker", prompt.to_user_prompt(), **GREEDY, max_tokens=LONG.thinker_tokens)
    length = len(expected.prompt_token_ids)
    plain = torch.arange(length)[:, None].repeat(1, 3)
    assert not torch.equal(thinker.tensors["mrope_positions"], plain)
    talker = await stages.ask("talker", thinker.tensors, **GREEDY, max_tokens=LONG.talker_tokens)
    assert talker.token_ids == expected.codec_token_ids
    flattened = {**thinker.tensors, "mrope_positions": plain, "mrope_delta": torch.zeros(1, dtype=torch.int64)}
    other = await stages.ask("talker", flattened, **GREEDY, max_tokens=LONG.talker_tokens)
    assert other.token_ids != expected.codec_token_ids


AUDIOS = {
    "no guidance": (12, ReferenceSettings(guidance=0.0)),
    "strong guidance": (12, ReferenceSettings(guidance=2.0)),
    "few steps": (12, ReferenceSettings(steps=4)),
    "one code": (1, ReferenceSettings()),
    "other seed": (12, ReferenceSettings(seed=123456789012)),
    "largest seed": (12, ReferenceSettings(seed=2**63 - 1)),
    "same length, other voice": (12, ReferenceSettings(voice="Ethan")),
    "longer": (40, ReferenceSettings(seed=3)),
}


async def test_audio_in_one_batch_equals_audio_alone(stages: OmniStages, reference: ReferenceModel) -> None:
    """Requests with equal settings share a batch. The audio of each equals that of transformers for this request."""
    generator = torch.Generator().manual_seed(0)
    cases = [(torch.randint(192, (length,), generator=generator), settings) for length, settings in AUDIOS.values()]
    cases += [(torch.randint(192, (12,), generator=generator), ReferenceSettings(seed=seed)) for seed in range(4)]
    audios = await asyncio.gather(
        *(
            stages.ask(
                "token2wav",
                {"codes": codes},
                item.voice,
                seed=item.seed,
                num_inference_steps=item.steps,
                guidance_scale=item.guidance,
            )
            for codes, item in cases
        )
    )
    for (codes, item), waveform in zip(cases, audios, strict=True):
        assert waveform.finish_reason is FinishReason.DIFFUSION_DONE
        assert waveform.audio.shape == (codes.numel() * 480,), "480 samples a code: 24 kHz at 50 codes a second"
        torch.testing.assert_close(waveform.audio, reference.speak(codes.tolist(), item), atol=AUDIO_TOLERANCE, rtol=0)


async def test_audio_without_a_seed_differs(stages: OmniStages) -> None:
    codes = {"codes": torch.arange(8)}
    first, second = await stages.ask("token2wav", codes), await stages.ask("token2wav", codes)
    assert not torch.equal(first.audio, second.audio)


async def test_nothing_to_say(stages: OmniStages) -> None:
    """A reply of one token has no row, because its position is never computed. There is no speech and no audio."""
    thinker = await stages.ask("thinker", ENDING.to_user_prompt(), **GREEDY, max_tokens=1)
    assert thinker.tensors["x"].shape[0] == thinker.tensors["mrope_positions"].shape[0]
    talker = await stages.ask("talker", thinker.tensors)
    assert (talker.finish_reason, talker.token_ids, talker.tensors) == (FinishReason.EMPTY_INPUT, [], {})
    waveform = await stages.ask("token2wav", {"codes": torch.empty(0, dtype=torch.int64)})
    assert (waveform.finish_reason, waveform.audio.numel()) == (FinishReason.EMPTY_INPUT, 0)


async def test_talker_sampling(stages: OmniStages, reference: ReferenceModel) -> None:
    """The codec stream's end token ends the talker even if the request names other stop tokens, but not with
    ignore_eos."""
    thinker = await stages.ask("thinker", ENDING.to_user_prompt(), **GREEDY, max_tokens=LONG.thinker_tokens)
    expected = reference.run(ENDING, LONG)
    unused = next(code for code in range(192) if code not in expected.codes)
    stopped = await stages.ask("talker", thinker.tensors, **GREEDY, max_tokens=48, stop_token_ids=[unused])
    assert stopped.token_ids == expected.codec_token_ids
    endless = await stages.ask("talker", thinker.tensors, **GREEDY, max_tokens=48, ignore_eos=True)
    assert endless.tensors["codes"].numel() == 48
    assert endless.finish_reason is FinishReason.LENGTH
    patient = await stages.ask("talker", thinker.tensors, **GREEDY, max_tokens=48, min_tokens=30)
    assert patient.tensors["codes"].numel() >= 30
    first, again, other = [
        await stages.ask("talker", thinker.tensors, max_tokens=32, temperature=1.5, seed=seed) for seed in (1, 1, 2)
    ]
    assert first.token_ids == again.token_ids != other.token_ids


async def test_a_talker_that_misses_its_end_is_stopped(stages: OmniStages, monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec token that repeats too often ends the stream. The limit is lowered to 2 for this checkpoint."""
    thinker = await stages.ask("thinker", ENDING.to_user_prompt(), max_tokens=LONG.thinker_tokens)
    sampling = {"temperature": 1.0, "top_k": 2, "repetition_penalty": 1.0, "max_tokens": 48}
    for seed in range(10):
        plain = (await stages.ask("talker", thinker.tensors, **sampling, seed=seed)).token_ids
        second = [index for index in range(1, len(plain)) if plain[index] == plain[index - 1]]
        if second and second[0] < len(plain) - 1:
            break
    else:
        pytest.fail("this talker never repeats a token; add seeds")
    monkeypatch.setattr(talker_feed, "REPEAT_SECONDS", 2 / 50)
    stopped = await stages.ask("talker", thinker.tensors, **sampling, seed=seed)
    assert stopped.token_ids == plain[: second[0] + 1]
    assert stopped.tensors["codes"].tolist() == stopped.token_ids
    assert stopped.finish_reason is FinishReason.STOP
    endless = await stages.ask("talker", thinker.tensors, **sampling, seed=seed, ignore_eos=True)
    assert endless.finish_reason is FinishReason.LENGTH, "ignore_eos also ignores this end"


async def test_audio_at_another_rate(stages: OmniStages) -> None:
    """Audio of 44.1 kHz is resampled to the encoder's 16 kHz."""
    samples = make_audio(0, rate_hz=44_100)
    message = ChatMessage("user", [AudioPart(samples, 44_100), TextPart("What do you hear?")])
    thinker = await stages.ask("thinker", UserPrompt(messages=[message]), **GREEDY, max_tokens=4)
    same = ReferencePrompt("What do you hear?", audios=[make_audio(0)]).to_user_prompt()
    expected = await stages.ask("thinker", same, **GREEDY, max_tokens=4)
    assert thinker.prompt_token_ids == expected.prompt_token_ids


REFUSED: dict[str, tuple[str, object, dict[str, object], type[OmniStageError], str]] = {
    "voice": ("token2wav", {"codes": torch.arange(3)}, {"voice": "Nobody"}, InvalidRequestError, "Chelsie, Ethan"),
    "code": ("token2wav", {"codes": torch.tensor([194])}, {}, InvalidTensorError, "below 194"),
    "one step": ("token2wav", {"codes": torch.arange(3)}, {"num_inference_steps": 1}, InvalidRequestError, "least 2"),
    "temperature": ("token2wav", {"codes": torch.arange(3)}, {"temperature": 1.0}, InvalidRequestError, "temperature"),
    "stop text": ("talker", {}, {"stop": ["."]}, InvalidRequestError, "stop"),
    "no rows": ("talker", {}, {}, InvalidTensorError, "x: is missing"),
    "steps": ("thinker", UserPrompt(text="Hello"), {"num_inference_steps": 4}, InvalidRequestError, "num_inference"),
    "too long": ("thinker", UserPrompt(token_ids=[5] * 1024), {}, PromptTooLongError, "1024"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_refused(stages: OmniStages, case: str) -> None:
    stage, source, arguments, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        await stages.ask(stage, source, **arguments)


async def test_too_many_media_are_refused_and_harm_nobody(stages: OmniStages) -> None:
    prompt = ReferencePrompt("What do you see?", images=[make_image(seed, 56, 56) for seed in range(5)])
    with pytest.raises(InvalidRequestError):
        await stages.ask("thinker", prompt.to_user_prompt(), **GREEDY, max_tokens=4)
    assert (await stages.ask("thinker", ENDING.to_user_prompt(), **GREEDY, max_tokens=4)).token_ids
