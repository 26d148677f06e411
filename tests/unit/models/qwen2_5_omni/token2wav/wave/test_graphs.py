"""CUDA graphs of a function: when they are used, what they copy, and what happens if a capture fails.

A CUDA graph needs a GPU. `GraphRecorder` replaces it on the CPU and behaves like it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from omni_stage.models.qwen2_5_omni.checkpoint import Blocks
from omni_stage.models.qwen2_5_omni.token2wav.wave.speech import GRAPH_WINDOWS, Speech, graph_blocks, split_windows
from omni_stage.models.qwen2_5_omni.token2wav.windows import next_window, window_blocks
from omni_stage.models.shared.graphs import Captured, GraphedFunction, TensorFunction, next_size
from support.models.graph_recorder import GraphRecorder
from support.models.wave_models import make_utterance, make_wave_model, make_wave_voices


def weigh(value: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return value * scale + 1


def test_a_captured_shape_replays_and_owns_its_result() -> None:
    record = GraphRecorder()
    graphed = GraphedFunction(weigh, record)
    value, scale = torch.arange(3.0), torch.tensor(2.0)
    assert graphed.warm_up(value, scale)
    warm = record.replays
    first = graphed(value, scale)
    second = graphed(value + 1, scale * 2)
    assert record.replays == warm + 2
    assert torch.equal(first, weigh(value, scale)), "a later replay must not write into an earlier result"
    assert torch.equal(second, weigh(value + 1, scale * 2))
    assert torch.equal(value, torch.arange(3.0)), "a capture must not write into the tensors of its warm-up"


def test_other_shapes_run_as_they_are() -> None:
    record = GraphRecorder()
    graphed = GraphedFunction(weigh, record)
    graphed.warm_up(torch.ones(3), torch.ones(()))
    warm = record.replays
    assert torch.equal(graphed(torch.ones(4), torch.ones(())), torch.full((4,), 2.0))
    assert record.replays == warm


def test_without_graphs_everything_runs_as_it_is() -> None:
    graphed = GraphedFunction(weigh, None)
    assert not graphed.warm_up(torch.ones(3), torch.ones(()))
    assert torch.equal(graphed(torch.ones(3), torch.ones(())), torch.full((3,), 2.0))


def fail(function: TensorFunction, inputs: tuple[torch.Tensor, ...]) -> Captured:
    raise RuntimeError("operation not permitted when stream is capturing")


def differ(by: float) -> Callable[[TensorFunction, tuple[torch.Tensor, ...]], Captured]:
    return lambda function, inputs: Captured(inputs, function(*inputs) + by, lambda: None)


@pytest.mark.parametrize("capture", [fail, differ(0.01), differ(torch.nan)], ids=["fails", "differs", "not a number"])
def test_a_capture_that_cannot_be_trusted_is_left_out(capture: object, caplog: pytest.LogCaptureFixture) -> None:
    graphed = GraphedFunction(weigh, capture)  # type: ignore[arg-type]
    assert not graphed.warm_up(torch.ones(3), torch.ones(()))
    assert torch.equal(graphed(torch.ones(3), torch.ones(())), torch.full((3,), 2.0))
    assert "serves these shapes without a graph" in caplog.text


def test_a_broken_device_ends_the_warmup() -> None:
    def broken(function: TensorFunction, inputs: tuple[torch.Tensor, ...]) -> Captured:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    with pytest.raises(torch.AcceleratorError):
        GraphedFunction(weigh, broken).warm_up(torch.ones(3), torch.ones(()))


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (Blocks(12, 2, 1), {2, 5, 6}),
        (Blocks(4, 2, 1), {3, 6, 8, 12, 13}),
        (Blocks(12, 3, 2), {3, 6, 8}),
        (Blocks(12, 0, 0), {2, 4}),
    ],
)
def test_windows_have_the_sizes_that_are_captured(blocks: Blocks, expected: set[int]) -> None:
    sizes, first = set(), 0
    while window := next_window(first, 600, ended=False, blocks=blocks):
        sizes.add((window.end - window.begin) // blocks.codes)
        first = window.until
    assert sizes == set(window_blocks(blocks)) == expected
    assert sizes <= set(graph_blocks(blocks))
    assert [next_size(size, (2, 5, 8)) for size in (1, 2, 3, 8, 9)] == [2, 2, 5, 8, 9]


@pytest.fixture(scope="module")
def speeches() -> tuple[Speech, Speech, GraphRecorder]:
    """Returns a model without graphs, the same one with graphs that are captured, and what counts their replays."""
    model = make_wave_model("small blocks")
    voices = make_wave_voices(model, "a", "b")
    plain, graphed = (Speech(model, voices, use_graphs=False) for _ in range(2))
    record = GraphRecorder()
    graphed.use_capture(record)
    with torch.inference_mode():
        graphed.warm_up()
    return plain, graphed, record


def test_packs_that_are_filled_up_to_a_captured_size_have_the_same_audio(
    speeches: tuple[Speech, Speech, GraphRecorder],
) -> None:
    plain, graphed, record = speeches
    warm = record.replays
    with torch.inference_mode():
        # 3 + 4 blocks of 4 codes are padded to 8 blocks, a captured size.
        utterances = [make_utterance(10, seed=1), make_utterance(16, seed=2, voice="b")]
        expected, ours = plain.speak(utterances), graphed.speak(utterances)
    assert record.replays == warm + 9, "one replay for each solver step; the vocoder is not captured for these lengths"
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


def test_the_vocoder_runs_no_size_that_is_not_captured(speeches: tuple[Speech, Speech, GraphRecorder]) -> None:
    """Of any number of windows of one length. Before, the first step with 3 of them or more than 4 was slow."""
    for count in range(1, 70):
        parts = [*split_windows(range(count))]
        assert [index for part in parts for index in part] == [*range(count)]
        assert {len(part) for part in parts} <= set(GRAPH_WINDOWS)
    plain, graphed, record = speeches
    warm = record.replays
    # The first window has so many codes.
    codes = min(window_blocks(plain.blocks)) * plain.blocks.codes
    utterances = [make_utterance(codes, seed=seed) for seed in range(3)]
    with torch.inference_mode():
        torch.testing.assert_close(graphed.speak(utterances), plain.speak(utterances), atol=1e-5, rtol=0)
    assert record.replays == warm + 9 + 2, "nine solver steps; two windows and one"
