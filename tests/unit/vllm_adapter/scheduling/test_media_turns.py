"""How the encoding of media takes turns with other requests' tokens. Tests the rule and OmniScheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

from omni_stage.errors import ConfigurationError
from omni_stage.vllm_adapter.scheduling.media_turns import STEP_EMBEDS, MediaShare, cap_budget
from omni_stage.vllm_adapter.wiring.names import MEDIA_SHARE
from support.engines.scheduler_classes import BOTH

STEP_S = 0.01


def run(turns: MediaShare, began: float, ended: float, *, encodes: bool = False, others: bool = True) -> None:
    turns.end(turns.begin(began, encodes=encodes, others=others), ended)


@pytest.mark.parametrize(
    ("share", "owed"),
    [
        pytest.param(0.5, 0.4, id="as long as the media took"),
        pytest.param(0.25, 1.2, id="three times as long"),
        pytest.param(0.8, 0.1, id="a quarter of it"),
    ],
)
def test_a_step_that_encodes_owes_time_to_the_others(share: float, owed: float) -> None:
    turns = MediaShare(share)
    assert turns.room(others=True) == STEP_EMBEDS
    run(turns, 0.0, 0.4, encodes=True)
    assert turns.owed == pytest.approx(owed)
    assert turns.room(others=True) == 0
    run(turns, 0.4, 0.4 + owed / 2)
    assert turns.room(others=True) == 0
    run(turns, 0.4 + owed / 2, 0.4 + 1.01 * owed)
    assert turns.room(others=True) == STEP_EMBEDS


def test_media_alone_have_no_bound_and_owe_nothing() -> None:
    turns = MediaShare(0.1)
    assert turns.room(others=False) is None
    run(turns, 0.0, 5.0, encodes=True, others=False)
    assert turns.room(others=True) == STEP_EMBEDS
    run(turns, 5.0, 6.0, encodes=True)
    assert turns.room(others=True) == 0
    # No other request is left, so the time that was owed to the others is dropped.
    run(turns, 6.0, 6.1, others=False)
    assert turns.room(others=True) == STEP_EMBEDS


def test_a_share_of_one_is_vllms_way() -> None:
    """With a share of 1 media have no limit, as in vLLM."""
    turns = MediaShare(1)
    run(turns, 0.0, 5.0, encodes=True)
    assert turns.room(others=True) is None


def test_steps_that_are_planned_ahead_wait_for_the_one_that_encodes() -> None:
    turns = MediaShare(0.5)
    media = turns.begin(0.0, encodes=True, others=True)
    assert turns.room(others=True) == 0
    ahead = turns.begin(0.01, encodes=False, others=True)
    turns.end(media, 1.0)
    assert turns.owed == pytest.approx(1.0)
    # The second step began to run when the first had ended, so its time counts from there.
    turns.end(ahead, 1.2)
    assert turns.owed == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("room", "next_embeds", "budget", "expected"),
    [
        pytest.param(STEP_EMBEDS, 100, 8192, STEP_EMBEDS, id="several small ones"),
        pytest.param(STEP_EMBEDS, 5000, 8192, 5000, id="one that is larger than a step takes"),
        pytest.param(STEP_EMBEDS - 1, 5000, 8192, STEP_EMBEDS - 1, id="a large one after another"),
        pytest.param(0, 5000, 8192, 0, id="none"),
        pytest.param(STEP_EMBEDS, 5000, 64, 64, id="never more than vLLM's budget"),
    ],
)
def test_budget_of_a_request(room: int, next_embeds: int, budget: int, expected: int) -> None:
    assert cap_budget(room, next_embeds, budget) == expected


@pytest.mark.parametrize("value", [0, -1, 1.5, "half", True, [0.5], float("nan")])
def test_an_invalid_share_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        MediaShare.from_additional_config({MEDIA_SHARE: value})
    assert caught.value.details.field == MEDIA_SHARE


@pytest.fixture
def picture_request(ar_request: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that builds a request: `before` tokens, then `images` images of `embeds` tokens each."""

    def build(name: str, embeds: int = 20, images: int = 1, before: int = 2) -> Any:
        request = ar_request(name, tokens=before + images * embeds + 1, max_tokens=1)
        request.mm_features = [
            MultiModalFeatureSpec(
                None, "image", f"{name}-{number}", PlaceholderRange(offset=before + number * embeds, length=embeds)
            )
            for number in range(images)
        ]
        return request

    return build


@pytest.fixture
def make_seeing_scheduler(make_scheduler: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that builds a scheduler with vLLM's encoder cache and a clock that only the test advances.

    The bare model itself has no encoder.
    """

    def build(scheduler_class: type, share: float = 0.5, **settings: Any) -> Any:
        sizes = {"max_model_len": 8192, "max_num_batched_tokens": 8192, "kv_blocks": 1024, **settings}
        scheduler = make_scheduler(scheduler_class, additional_config={MEDIA_SHARE: share}, **sizes)
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=8192)
        scheduler.max_num_encoder_input_tokens = 8192
        scheduler.now = 0.0
        scheduler.clock = lambda: scheduler.now
        return scheduler

    return build


@pytest.fixture
def one_step(run_step: Callable[..., Any]) -> Callable[..., dict[str, int]]:
    """Returns a function that runs a step, which takes `media_s` seconds if it encodes media.

    The function returns how many media the step encoded, by request.
    """

    def step(scheduler: Any, media_s: float = STEP_S) -> dict[str, int]:
        output = scheduler.schedule()
        encoded = {name: len(inputs) for name, inputs in output.scheduled_encoder_inputs.items()}
        scheduler.now += media_s if encoded else STEP_S
        scheduler.update_from_output(output, run_step(scheduler, output))
        step.tokens = output.num_scheduled_tokens
        return encoded

    return step


@BOTH
@pytest.mark.parametrize(("share", "rest"), [(0.5, 10), (0.25, 30), (0.8, 3)])
def test_text_keeps_its_share_beside_a_flood_of_images(
    scheduler_class, share, rest, make_seeing_scheduler, picture_request, ar_request, one_step
):
    """Encoding takes as long as ten tokens. With a share of 0.5, ten tokens follow it; with 0.25, thirty."""
    scheduler = make_seeing_scheduler(scheduler_class, share)
    scheduler.add_request(ar_request("text", max_tokens=400))
    one_step(scheduler)
    for number in range(4):
        scheduler.add_request(picture_request(f"flood {number}", 300))
    encoded = []
    for _ in range(3 * (rest + 1) + 1):
        encoded.append(sum(one_step(scheduler, 10 * STEP_S).values()))
        # The text request gets a token in every step, those that encode included.
        assert "text" in one_step.tokens
    at = [number for number, count in enumerate(encoded) if count]
    # Three images of 300 embeddings fit into the first step, whose limit is STEP_EMBEDS.
    assert at == [0, rest + 1]
    assert [encoded[number] for number in at] == [3, 1]


@BOTH
def test_text_passes_images_that_wait(scheduler_class, make_seeing_scheduler, picture_request, ar_request, one_step):
    """vLLM would consider no request behind one that cannot start, such as one whose prompt begins with an image."""
    scheduler = make_seeing_scheduler(scheduler_class)
    scheduler.add_request(ar_request("text", max_tokens=400))
    one_step(scheduler)
    scheduler.add_request(picture_request("first", STEP_EMBEDS, before=0))
    assert one_step(scheduler, 1.0) == {"first": 1}
    scheduler.add_request(picture_request("second", STEP_EMBEDS, before=0))
    scheduler.add_request(ar_request("late", max_tokens=3))
    assert one_step(scheduler) == {}
    assert {"text", "late"} <= set(one_step.tokens)
    assert "second" not in one_step.tokens
    assert scheduler.get_num_unfinished_requests() == 3
    while "second" in scheduler.requests:
        one_step(scheduler)
    # Encoding the first image took as long as a hundred tokens, so a hundred come before the second image.
    assert len(scheduler.requests["text"].output_token_ids) == pytest.approx(100, abs=4)


@BOTH
def test_a_step_takes_so_many_images_and_no_more(
    scheduler_class, make_seeing_scheduler, picture_request, ar_request, one_step
):
    scheduler = make_seeing_scheduler(scheduler_class, max_num_seqs=16)
    scheduler.add_request(ar_request("text", max_tokens=1000))
    one_step(scheduler)
    small = STEP_EMBEDS // 4
    scheduler.add_request(picture_request("album", small, images=6))
    scheduler.add_request(picture_request("large", 3000))
    seen = []
    while {"album", "large"} & set(scheduler.requests):
        seen.append(one_step(scheduler))
    # Four images of the album fill a step. The other two leave no room for the large one, which gets its own step.
    assert [step for step in seen if step] == [{"album": 4}, {"album": 2}, {"large": 1}]


@BOTH
def test_images_alone_are_as_fast_as_in_vllm(scheduler_class, make_seeing_scheduler, picture_request, one_step):
    """Without other requests, a step encodes all waiting images, as in vLLM."""
    scheduler = make_seeing_scheduler(scheduler_class, 0.1)
    for number in range(3):
        scheduler.add_request(picture_request(f"picture {number}", 2000))
    assert one_step(scheduler, 1.0) == {f"picture {number}": 1 for number in range(3)}


@BOTH
def test_no_request_starves(scheduler_class, make_seeing_scheduler, picture_request, ar_request, one_step):
    """Requests with images of many sizes are all answered, while a long text runs and with a small KV cache."""
    scheduler = make_seeing_scheduler(scheduler_class, kv_blocks=300, max_num_seqs=4)
    scheduler.add_request(ar_request("text", max_tokens=3000))
    names = []
    for number in range(12):
        names.append(f"picture {number}")
        scheduler.add_request(picture_request(names[-1], 50 + 120 * number, images=1 + number % 3, before=number % 2))
    for _ in range(1500):
        one_step(scheduler, 0.05)
        if set(scheduler.requests) == {"text"}:
            return
    pytest.fail(f"still there: {sorted(scheduler.requests)}")
