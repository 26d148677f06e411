"""The tokens of a stop string are not spoken, whatever the steps in which they were sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_proto.stage_config import SamplingDefaults
from omni_stage.models.component import EngineStep, FinishReason, StageRequest, UserPrompt
from omni_stage.models.registry import installed_families
from omni_stage.models.shared.thinker import SpokenTokens
from support.engines.omni_stages import stage_config

WORDS = ["", "Go", " home", " now", "En", "d:", "\n", " x", "er"]
"""The text of each token id. The stop string is "End:"."""


def decode(token_ids: Sequence[int]) -> str:
    return "".join(WORDS[token_id] for token_id in token_ids)


def spoken(stops: list[str], *steps: EngineStep) -> list[int]:
    counter = SpokenTokens(stops, decode)
    return [counter.count(step) for step in steps]


def step(*token_ids: int, text: str = "", stop: str | None = None) -> EngineStep:
    reason = None if stop is None else FinishReason.STOP
    return EngineStep(token_ids=list(token_ids), text=text, finish_reason=reason, stop_reason=stop or "")


def test_every_token_counts_at_once_without_stop_strings() -> None:
    assert spoken([], step(1, text="Go"), step(2, 3, text=" home now", stop="")) == [1, 3]


def test_as_many_tokens_are_withheld_as_a_stop_string_may_have() -> None:
    assert spoken(["End:", "\n"], step(1), step(2), step(3), step(7, 7), step(7)) == [0, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("token_ids", "text", "count"),
    [
        pytest.param((1, 2, 4, 5), "Go home", 2, id="tokens of its own"),
        pytest.param((1, 2, 3, 4, 5), "Go home now", 3, id="after more words"),
        pytest.param((4, 5), "", 0, id="no text at all"),
    ],
)
def test_a_stop_string_is_not_spoken(token_ids: tuple[int, ...], text: str, count: int) -> None:
    """vLLM cuts the stop string from the text that it returns, but not from the token ids."""
    assert spoken(["End:"], step(*token_ids[:-1]), step(token_ids[-1], text=text, stop="End:"))[-1] == count


def test_a_token_that_the_stop_string_cuts_is_spoken() -> None:
    """A token may hold text before the stop string. Without the token, a word would be missing from the speech."""
    assert spoken(["er"], step(1, text="Go"), step(2, 8, text=" home", stop="er"))[-1] == 2
    assert spoken(["me"], step(1, text="Go"), step(2, text=" ho", stop="me"))[-1] == 2


def test_another_end_withholds_nothing() -> None:
    assert spoken(["End:"], step(1), step(4, 7, text="GoEn x", stop="151645")) == [0, 3]


@pytest.mark.parametrize("family", ["qwen2_5_omni", "qwen3_omni"])
def test_a_thinker_publishes_no_token_of_a_stop_string(make_tiny_checkpoint: Callable[..., Path], family: str) -> None:
    config = stage_config("thinker", make_tiny_checkpoint(0, "small", family), family=family)
    thinker: Any = installed_families().factory(f"{family}/thinker")(config)
    reply = thinker._prompts._tokenizer("Go home. End:")["input_ids"]
    kept = next(count for count in range(len(reply)) if "home." in thinker._prompts.decode(reply[:count]))
    assert kept < len(reply) - 1, "the stop string has several tokens"
    request = StageRequest("one", UserPrompt(text="Hi"), SamplingDefaults(stop=[" End:"]), want_tensors=True)
    emitter = thinker.emitter(request, thinker.prepare(request))
    text = thinker._prompts.decode(reply[:kept])
    published: list[int] = []
    for index, token_id in enumerate(reply):
        is_last = index == len(reply) - 1
        emitted = emitter.emit(
            EngineStep(
                token_ids=[token_id],
                prompt_token_ids=[1, 2] if index == 0 else None,
                tensors={"rows": torch.ones(2 if index == 0 else 1, 4)} if family == "qwen2_5_omni" else {},
                text=text if is_last else "",
                finish_reason=FinishReason.STOP if is_last else None,
                stop_reason=" End:" if is_last else "",
            )
        )
        published += emitted.tensors.get("token_ids", torch.empty(0)).tolist()
    assert published == [1, 2, *reply[:kept]]


def test_a_long_stop_string_costs_few_decodings() -> None:
    """Each decodes the whole reply, in the event loop."""
    decoded: list[int] = []

    def decode_letters(token_ids: Sequence[int]) -> str:
        decoded.append(len(token_ids))
        return "a" * len(token_ids)

    counter = SpokenTokens(["b", "\N{GRINNING FACE}" * 256], decode_letters)
    assert counter.count(step(*[1] * 4000, text="a" * 3999, stop="b")) == 3999
    assert len(decoded) <= 20
