"""Windows of codec tokens overlap, but each code becomes audio once, however the codes arrive.

The windows' audio is joined without a jump.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniBigVGANConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavBigVGANModel

from omni_stage.errors import InvalidTensorError, ModelExecutionError
from omni_stage.models.component import EdgeRows, EngineInput, EngineStep, FinishReason
from omni_stage.models.qwen2_5_omni.checkpoint import (
    AudioShape,
    Blocks,
    first_codes,
    lookahead_blocks,
    read_audio_shape,
)
from omni_stage.models.qwen2_5_omni.processors import talker2token2wav
from omni_stage.models.qwen2_5_omni.token2wav.component import WindowEmitter, WindowFeed, fade_over
from omni_stage.models.qwen2_5_omni.token2wav.wave.speech import make_noise, vocode
from omni_stage.models.qwen2_5_omni.token2wav.wave.utterance import Utterance, cut_window
from omni_stage.models.qwen2_5_omni.token2wav.windows import Window, next_window

BLOCKS = Blocks(4, 2, 1)
AUDIO = AudioShape(240, 2)
"""Of the published models."""


def feed_of(windows: list[tuple[list[int], Window]]) -> WindowFeed:
    """Returns a feed. For each input that it builds, it appends the codes and the window to `windows`."""

    def build(codes: torch.Tensor, window: Window) -> EngineInput:
        windows.append((codes.tolist(), window))
        return EngineInput(prompt={})

    return WindowFeed(BLOCKS, lambda codes: talker2token2wav({"codes": codes}, 1000, 500), build)


def run_feed(codes: list[int], cuts: list[int], *, end_late: bool) -> list[tuple[list[int], Window]]:
    """Returns the windows of a feed whose codes arrive in batches. The batches are split at the indices `cuts`.

    With end_late, the stream's end arrives after the last batch, otherwise together with it.
    """
    windows: list[tuple[list[int], Window]] = []
    feed = feed_of(windows)
    edges = [0, *cuts, len(codes)]
    batches = [EdgeRows({"codes": torch.tensor(codes[a:b])}) for a, b in pairwise(edges)]
    if end_late:
        batches.append(EdgeRows(ended=True))
    else:
        batches[-1] = EdgeRows(batches[-1].tensors, ended=True)
    last = False
    for batch in batches:
        feed.add(batch)
        while not last and (part := feed.next_part()) is not None:
            last = part.last
    assert last
    return windows


@given(st.integers(1, 80), st.data())
@settings(max_examples=150)
def test_windows_do_not_depend_on_when_codes_come(count: int, data: st.DataObject) -> None:
    codes = list(range(count))
    cuts = sorted(data.draw(st.sets(st.integers(1, count - 1)))) if count > 1 else []
    windows = run_feed(codes, cuts, end_late=data.draw(st.booleans()))
    assert windows == run_feed(codes, [], end_late=False)
    decoded: list[int] = []
    for heard, window in windows:
        assert heard == codes[window.begin : window.end]
        decoded += codes[window.first : window.until]
        assert window.begin % BLOCKS.codes == 0, "a window begins at a block's border"
        assert window.begin == max(0, window.first - BLOCKS.back * BLOCKS.codes)
        if not window.last:
            assert window.end == window.until + lookahead_blocks(BLOCKS) * BLOCKS.codes
    assert decoded == codes
    assert [window.last for _, window in windows] == [False] * (len(windows) - 1) + [True]


def test_the_first_window_is_short() -> None:
    """With the published blocks of 12 codes the first window reads 24 codes, with blocks of 4 it reads 12."""
    assert next_window(0, 23, ended=False, blocks=Blocks(12, 2, 1)) is None
    assert next_window(0, 24, ended=False, blocks=Blocks(12, 2, 1)) == Window(0, 0, 12, 24, last=False)
    assert next_window(0, 11, ended=False, blocks=Blocks(4, 2, 1)) is None
    assert next_window(0, 12, ended=False, blocks=Blocks(4, 2, 1)) == Window(0, 0, 4, 12, last=False)
    assert next_window(4, 24, ended=False, blocks=Blocks(4, 2, 1)) == Window(0, 4, 16, 24, last=False)


@pytest.mark.parametrize(
    ("block_codes", "new_blocks"),
    [(12, [1, 3, 3, 3, 3, 3]), (4, [1, 3, 4, 8, 9, 9]), (2, [1, 3, 4, 8, 16, 18]), (6, [1, 3, 4, 6, 6, 6])],
)
def test_windows_of_small_blocks_grow_to_the_published_size(block_codes: int, new_blocks: list[int]) -> None:
    """The published windows have 36 new codes. Smaller blocks need more of them for as much audio."""
    first, found = 0, []
    for _ in new_blocks:
        window = next_window(first, 1000, ended=False, blocks=Blocks(block_codes, 2, 1))
        assert window is not None
        found.append(window.keep // block_codes)
        first = window.until
    assert found == new_blocks


def test_no_codes_are_no_audio() -> None:
    feed = feed_of([])
    assert feed.next_part() is None
    feed.add(EdgeRows(ended=True))
    part = feed.next_part()
    assert part is not None
    assert (part.input.finished, part.last) == (FinishReason.EMPTY_INPUT, True)


@pytest.mark.parametrize(("codes", "words"), [([1000], "below 1000"), ([-1], "below 1000"), ([1] * 501, "at most 500")])
def test_bad_codes_are_refused_whenever_they_come(codes: list[int], words: str) -> None:
    feed = feed_of([])
    feed.add(EdgeRows({"codes": torch.tensor([1, 2])}))
    with pytest.raises(InvalidTensorError, match=words):
        feed.add(EdgeRows({"codes": torch.tensor(codes)}))


@pytest.mark.parametrize("mel_bins", [16, 24, 80])
def test_a_frame_has_the_same_noise_in_every_window(mel_bins: int) -> None:
    whole = make_noise(7, 200, mel_bins)
    for first, frames in ((0, 2), (8, 40), (198, 2), (64, 136)):
        assert torch.equal(make_noise(7, frames, mel_bins, first_frame=first), whole[:, first : first + frames])


def test_what_a_window_gives() -> None:
    """cut_window returns the audio of the codes to keep, and the samples that follow it, for the cross-fade."""
    audio = torch.arange(6.0 * AUDIO.code)
    heard = Utterance(torch.zeros(6, dtype=torch.int64), "voice", 0, 10, 0.5, first_code=4, keep=(2, 3, 5))
    parts = cut_window(audio, heard, AUDIO)
    assert isinstance(parts, dict)
    assert torch.equal(parts["output"], audio[2 * AUDIO.code : 5 * AUDIO.code])
    assert torch.equal(parts["tail"], audio[5 * AUDIO.code : 5 * AUDIO.code + 5])
    assert parts["output"].untyped_storage().nbytes() == 3 * AUDIO.code * 4, (
        "the output shares no storage with the rest of the audio"
    )


@pytest.mark.parametrize("shape", [(6 * AUDIO.code - 1,), (6 * AUDIO.code + 1,), (1, 6 * AUDIO.code), (0,)])
def test_audio_of_another_length_is_the_models_fault(shape: tuple[int, ...]) -> None:
    for keep in (None, (2, 3, 5)):
        heard = Utterance(torch.zeros(6, dtype=torch.int64), "voice", 0, 10, 0.5, keep=keep)
        with pytest.raises(ModelExecutionError, match="6 codes; it must be"):
            cut_window(torch.zeros(shape), heard, AUDIO)


def test_windows_cross_fade() -> None:
    """fade_over cross-fades linearly from the previous window's tail to the next window."""
    joined = fade_over(torch.ones(4), torch.zeros(6))
    assert joined.tolist() == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0, 0.0])
    assert fade_over(torch.ones(4), torch.zeros(2)).shape == (2,)
    same = torch.linspace(-1, 1, 50)
    torch.testing.assert_close(fade_over(same[:10], same), same)


def test_the_emitter_joins_windows() -> None:
    emitter = WindowEmitter(AUDIO)
    window = torch.zeros(AUDIO.code)
    first = emitter.emit(EngineStep(tensors={"output": window, "tail": torch.ones(AUDIO.frame)}))
    second = emitter.emit(EngineStep(tensors={"output": window}, finish_reason=FinishReason.DIFFUSION_DONE))
    assert first.audio is not None
    assert second.audio is not None
    assert torch.equal(first.audio, window)
    assert torch.equal(second.audio, fade_over(torch.ones(AUDIO.frame), window))
    assert second.audio[0] > 0.99
    assert (first.finish_reason, second.finish_reason) == (None, FinishReason.DIFFUSION_DONE)
    with pytest.raises(ModelExecutionError, match="without audio"):
        emitter.emit(EngineStep())


@pytest.mark.parametrize(
    "tensors",
    [
        pytest.param({"output": torch.zeros(AUDIO.code - 1)}, id="a part of a code"),
        pytest.param({"output": torch.zeros(0)}, id="nothing"),
        pytest.param({"output": torch.zeros(1, AUDIO.code)}, id="two dimensions"),
        pytest.param({"output": torch.zeros(())}, id="no dimension"),
        pytest.param({"output": torch.zeros(AUDIO.code, dtype=torch.int16)}, id="integers"),
        pytest.param({"output": torch.zeros(AUDIO.code), "tail": torch.zeros(3)}, id="a short tail"),
    ],
)
def test_a_window_of_another_form_is_the_models_fault(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ModelExecutionError, match="it must be float32"):
        WindowEmitter(AUDIO).emit(EngineStep(tensors=tensors))


@pytest.mark.parametrize("block", [2, 4, 8, 12, 16])
def test_the_first_audio_needs_the_codes_of_the_first_window(block: int) -> None:
    need = first_codes(Blocks(block, 2, 1))
    assert next_window(0, need - 1, ended=False, blocks=Blocks(block, 2, 1)) is None
    window = next_window(0, need, ended=False, blocks=Blocks(block, 2, 1))
    assert window is not None
    assert window.end == need


@pytest.mark.parametrize(
    ("repeats", "rates", "kernels"),
    [
        (2, [5, 3, 2, 2, 2, 2], [11, 7, 4, 4, 4, 4]),
        (1, [4, 2], [8, 4]),
        (3, [5, 3], [10, 7]),
        (2, [4, 3, 2], [7, 6, 3]),
    ],
)
def test_a_vocoder_of_any_rates(repeats: int, rates: list[int], kernels: list[int]) -> None:
    """The number of samples is that of transformers' vocoder, and windows of it join to as many."""
    config = Qwen2_5OmniBigVGANConfig(
        mel_dim=4,
        upsample_initial_channel=2 ** len(rates),
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3, 5]],
        upsample_rates=rates,
        upsample_kernel_sizes=kernels,
    )
    torch.manual_seed(0)
    vocoder = Qwen2_5OmniToken2WavBigVGANModel(config).eval()
    waveform = read_audio_shape(repeats, rates, kernels)
    with torch.inference_mode():
        mel = torch.randn(1, 4, 6 * repeats)
        audio = vocode(vocoder, mel)[0]
        torch.testing.assert_close(audio, vocoder(mel))
    assert audio.shape == (waveform.count(6),)
    emitter, made = WindowEmitter(waveform), 0
    for keep in ((0, 4, waveform.frame), (4, 2, 0)):
        heard = Utterance(torch.zeros(6, dtype=torch.int64), "voice", 0, 10, 0.5, keep=keep)
        parts = cut_window(audio, heard, waveform)
        assert isinstance(parts, dict)
        step = emitter.emit(EngineStep(tensors=parts))
        made += 0 if step.audio is None else step.audio.shape[0]
    assert made == waveform.count(6)
