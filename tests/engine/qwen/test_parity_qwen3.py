"""Our three stages compared with transformers' Qwen3-Omni, on tiny checkpoints of two seeds and two shapes.

Text and the codes of every codebook must be equal, audio within 1e-5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_stage.exchange import StructuredText
from omni_stage.models.component import EdgeStream, FinishReason
from support.engines.omni_stages import OmniStages, receive, run_omni_stages
from support.engines.streams import stage_request
from support.media.samples import make_audio, make_image
from support.models.qwen3_chain import check_parity, run_chain, run_streamed, talking
from support.models.reference import ReferencePrompt
from support.models.reference_qwen3 import Qwen3Settings, load_qwen3_reference

pytestmark = pytest.mark.engine

CHECKPOINTS = [
    # tests/pipeline/answers/test_parity_grpc_qwen3.py has the other prompts of this checkpoint, through stage servers.
    pytest.param(0, "small", ("text", "long", "odd sound", "image and sound", "third turn"), id="small-seed0"),
    pytest.param(1, "small", (), id="small-seed1", marks=pytest.mark.full),
    pytest.param(0, "wide", (), id="wide-seed0", marks=pytest.mark.full),
    pytest.param(1, "wide", (), id="wide-seed1", marks=pytest.mark.full),
]
"""Seed, shape, and the names of the prompts; without names all of them."""
SENTENCE = "The road goes through the hills, past the mill and the old stone bridge, to the town. "
PROMPTS = {
    "text": ReferencePrompt("Tell me what the weather is like."),
    "system": ReferencePrompt("Tell me what the weather is like.", system="Be brief."),
    "long": ReferencePrompt(2 * SENTENCE),
    "sound": ReferencePrompt("What do you hear?", audios=[make_audio(0)]),
    # Ends in the middle of a frame of 10 ms. One more frame would be one more token.
    "odd sound": ReferencePrompt("What do you hear?", audios=[make_audio(2, 2.0055)]),
    "image": ReferencePrompt("What do you see?", images=[make_image(0)]),
    "image and sound": ReferencePrompt(
        "Read the sentence slowly.", images=[make_image(1, 140, 56)], audios=[make_audio(1, 0.7)]
    ),
    "third turn": ReferencePrompt(
        "And this?",
        images=[make_image(2)],
        history=[("Hello!", "Hi there."), ("مرحبا 你好", "\N{SMILING FACE WITH OPEN MOUTH}")],
    ),
}
SETTINGS = Qwen3Settings()


@pytest.mark.parametrize(("seed", "shape", "names"), CHECKPOINTS)
async def test_prompt_kinds_alone_together_and_streamed(
    make_tiny_checkpoint: Callable[..., Path], seed: int, shape: str, names: tuple[str, ...]
) -> None:
    """One prompt runs over Full edges, and two over Stream edges. Then all prompts run concurrently, over edges of both
    modes, in shared batches."""
    checkpoint = make_tiny_checkpoint(seed, shape, "qwen3_omni")
    model = load_qwen3_reference(checkpoint)
    prompts = {name: PROMPTS[name] for name in names or PROMPTS}
    references = {name: model.run(prompt, SETTINGS) for name, prompt in prompts.items()}
    async with run_omni_stages(checkpoint, family="qwen3_omni") as stages:
        check_parity(await run_chain(stages, PROMPTS["image and sound"], SETTINGS), references["image and sound"])
        for name in ("text", "odd sound"):
            check_parity(await run_streamed(stages, PROMPTS[name], SETTINGS), references[name])
        together = await asyncio.gather(
            *(run_chain(stages, prompt, SETTINGS) for prompt in prompts.values()),
            *(run_streamed(stages, prompt, SETTINGS) for prompt in prompts.values()),
        )
        for name, ours in zip([*prompts, *prompts], together, strict=True):
            check_parity(ours, references[name])
        await check_voices_and_penalty(stages, model)
        await check_bytes_on_the_edge(stages)
        await check_form_of_text(stages)
        await check_each_frame_is_heard_before_the_next(stages)
        await check_a_reply_without_text_is_no_speech(stages)


async def check_voices_and_penalty(stages: OmniStages, model: Any) -> None:
    """The repetition penalty counts only the talker's own codes. Requests with different voices run concurrently."""
    settings = replace(SETTINGS, repetition_penalty=1.3, frames=16)
    other = replace(settings, voice="Aiden")
    prompt = PROMPTS["text"]
    ours = await asyncio.gather(*(run_streamed(stages, prompt, each) for each in (settings, other)))
    expected = [model.run(prompt, each) for each in (settings, other)]
    assert expected[0].codes.tolist() != expected[1].codes.tolist()
    for mine, theirs in zip(ours, expected, strict=True):
        check_parity(mine, theirs)


async def check_bytes_on_the_edge(stages: OmniStages) -> None:
    """For a text prompt the thinker sends token ids and no rows.

    At the published width a row has 4,096 bytes and a token id 8, which is 0.2 per cent of a row.
    """
    thinker = await stages.ask("thinker", PROMPTS["long"].to_user_prompt(), temperature=0.0, max_tokens=4)
    assert thinker.tensors.keys() == {"token_ids", "prompt_tokens"}
    sent = sum(tensor.nbytes for tensor in thinker.tensors.values())
    assert sent <= 0.05 * thinker.tensors["token_ids"].shape[0] * 2048 * 2


async def check_form_of_text(stages: OmniStages) -> None:
    """A text that is not spoken has the requested form."""
    form = StructuredText(choice=("yes", "no"))
    prompt = replace(PROMPTS["image"].to_user_prompt(), structured=form)
    assert (await stages.ask("thinker", prompt, want_tensors=False)).text in ("yes", "no")


async def check_each_frame_is_heard_before_the_next(stages: OmniStages) -> None:
    """code2wav returns the audio of each of the talker's frames before it gets the next one.

    The first frame has 1,365 samples, each later one 1,920.
    """
    prompt, limit = PROMPTS["text"].to_user_prompt(), SETTINGS.thinker_tokens
    thinker = await stages.ask("thinker", prompt, temperature=0.0, max_tokens=limit)
    talker, code2wav = stages.engines["talker"], stages.engines["code2wav"]
    written, frames = EdgeStream(), EdgeStream()
    written.put(thinker.tensors)
    written.end()
    speaking = talker.generate(stage_request(talker, written, SETTINGS.voice, **talking(replace(SETTINGS, frames=6))))
    sounding = code2wav.generate(stage_request(code2wav, frames))
    heard: list[tuple[int, int]] = []
    async with aclosing(speaking) as steps, aclosing(sounding) as audios:
        async for step in steps:
            if "codes" in step.tensors:
                frames.put(receive(step))
                audio = (await anext(audios)).audio
                assert audio is not None
                heard.append((step.tensors["codes"].shape[0], audio.shape[0]))
    assert len(heard) > 1, "a tiny talker may end its speech before the limit, but not in its first frame"
    assert [1920 * count - 555 * (at == 0) for at, (count, _) in enumerate(heard)] == [samples for _, samples in heard]


async def check_a_reply_without_text_is_no_speech(stages: OmniStages) -> None:
    facts: Any = stages.engines["talker"].component
    text = facts._checkpoint.text
    prompt = [text.message_start, text.user, 1, text.message_start, text.assistant, 1]
    tensors = {"token_ids": torch.tensor(prompt), "prompt_tokens": torch.tensor([len(prompt)])}
    silent = await stages.ask("talker", tensors, "Ethan")
    assert silent.finish_reason is FinishReason.EMPTY_INPUT
