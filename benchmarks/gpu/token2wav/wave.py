"""Compares our token2wav, which computes block by block, with transformers' dense computation, without vLLM.

It runs on any device. Without a GPU, memory is measured on meta tensors of the published shapes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from benchmarks.gpu.checks import Context, Finding, at_most
from benchmarks.gpu.memory.peak import PeakMemory
from benchmarks.gpu.memory.sizes import WAVE_BASE_BYTES, WAVE_BYTES_PER_CODE, WAVE_TENSOR_BYTES_PER_CODE
from benchmarks.gpu.token2wav.wave_model import CPU_STEPS, STEPS, Wave, full_precision, load, make_published
from omni_stage.models.qwen2_5_omni.checkpoint import read_blocks
from omni_stage.models.qwen2_5_omni.token2wav.wave.speech import GRAPH_WINDOWS, Speech, graph_blocks, vocode
from omni_stage.models.qwen2_5_omni.token2wav.wave.transformer import BlockTransformer, VoiceRows, pack_blocks
from omni_stage.models.qwen2_5_omni.token2wav.wave.utterance import Utterance
from omni_stage.models.qwen2_5_omni.token2wav.windows import next_window, window_blocks

LENGTHS = (12, 72, 750, 4096)
"""Numbers of codec tokens: in a first window, in a later window, in 15 seconds of audio, and in the longest reply."""
CODES_PER_SECOND = 50
GRAPHED_CODES = 72
"""The most codec tokens in a window. Windows use CUDA graphs."""
CPU_TOLERANCE, GPU_TOLERANCE = 1e-5, 1e-4
"""Largest difference that rounding makes if the same float32 numbers are added in another order. A GPU picks kernels by
shape, so results of different batches differ more there."""


def tolerance(context: Context) -> float:
    """Returns the largest difference in a sample that rounding explains."""
    return GPU_TOLERANCE if context.on_gpu else CPU_TOLERANCE


def velocity(context: Context) -> Iterator[Finding]:
    """Compares one evaluation of the transformer with block attention to one with a dense attention mask."""
    wave = load(context.device)
    voice, device = wave.voices["a"], wave.dit.proj_out.weight.device
    for count in (12, 29, 72):
        utterance = wave.utterance(count)
        frames, moment = count * wave.dit.repeats, torch.tensor([0.3], device=device)
        with torch.inference_mode(), full_precision():
            pack, conditions, mel = wave.speech.prepare([utterance])
            transformer = wave.speech.transformer
            (ours,) = pack.split(transformer.velocity(transformer.modulate(moment)[0], mel, conditions))
            given, dropped = wave.dit(
                hidden_states=pack.split(mel)[0][None],
                condition_vector=voice.reference_mel.to(device),
                speaker_embedding=voice.speaker.to(device)[:, None].expand(1, frames, -1),
                quantized_code=utterance.codes[None].to(device),
                time_step=moment[0],
                apply_cfg=True,
            ).chunk(2)
            expected = (given + (given - dropped) * utterance.guidance)[0]
        yield at_most(float((ours - expected).abs().max()), tolerance(context), name=f"{count}_codes")


def parity(context: Context) -> Iterator[Finding]:
    """Compares our audio with that of transformers from the same codes and noise.

    Silent audio fails, because equal silence would prove nothing.
    """
    wave = load(context.device)
    for count in (12, 72) if context.on_gpu else (12, 29):
        utterance = wave.utterance(count, steps=STEPS if context.on_gpu else CPU_STEPS)
        with full_precision():
            ours = wave.speak(utterance)[0]
            expected = wave.speak_densely(utterance)
        loudness = float(expected.abs().max())
        if loudness < 1e-3 or ours.shape != expected.shape:
            yield Finding(f"peak {loudness:.2g}, {ours.shape[0]} samples", f"{expected.shape[0]} samples", ok=False)
            continue
        difference = float((ours - expected).abs().max())
        yield at_most(difference, tolerance(context), name=f"{count}_codes", data={"peak": loudness})


def batch(context: Context) -> Finding:
    """Compares utterances of four lengths in one batch with each of them alone."""
    wave = load(context.device)
    steps = STEPS if context.on_gpu else CPU_STEPS
    utterances = [wave.utterance(count, seed, steps) for seed, count in enumerate((12, 36, 31, 7))]
    with full_precision():
        together = wave.speak(*utterances)
        alone = [wave.speak(utterance)[0] for utterance in utterances]
    return at_most(
        max(float((one - other).abs().max()) for one, other in zip(together, alone, strict=True)), tolerance(context)
    )


def windows(context: Context) -> Finding:
    """Compares a later window's audio with transformers' audio of the same codes."""
    wave = load(context.device)
    blocks = read_blocks(wave.dit.config)
    window = next_window(4 * blocks.codes, 12 * blocks.codes, ended=False, blocks=blocks)
    if window is None:
        return Finding("no window", "a window", ok=False)
    heard = wave.utterance(window.end - window.begin, steps=STEPS if context.on_gpu else CPU_STEPS)
    with full_precision():
        return at_most(float((wave.speak(heard)[0] - wave.speak_densely(heard)).abs().max()), tolerance(context))


def memory(context: Context) -> Iterator[Finding]:
    """Checks that the peak memory stays within docs/gpu-sizing.md's estimate, which is linear in the length.

    Without a GPU, the limit is the part of the estimate that tensors take.
    """
    for count in LENGTHS:
        limit = WAVE_BASE_BYTES + count * WAVE_BYTES_PER_CODE
        if not context.on_gpu:
            limit = (8 << 20) + count * WAVE_TENSOR_BYTES_PER_CODE
        peak = _gpu_peak(count) if context.on_gpu else _meta_peak(count)
        yield at_most(peak / 1e9, limit / 1e9, name=f"{count}_codes", unit="GB", data={"bytes": peak})


def _gpu_peak(count: int) -> int:
    wave = load("cuda")
    held = torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    wave.speak(wave.utterance(count, steps=2))
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - held


@cache
def _published_on_meta() -> Any:
    return make_published("meta")


def _meta_peak(count: int) -> int:
    """Returns the peak bytes of one evaluation of the transformer or of the vocoder, whichever is larger."""
    model = _published_on_meta()
    dit = model.code2wav_dit_model
    frames = count * dit.repeats
    pack = pack_blocks([frames], dit.block_size)
    with torch.inference_mode(), torch.device("meta"):
        rows = VoiceRows(torch.empty(dit.hidden_size), torch.empty(dit.hidden_size))
        transformer = BlockTransformer(dit)
        with PeakMemory() as evaluation:
            conditions = transformer.condition(pack, [torch.zeros(count, dtype=torch.int64)], [rows], [0.5])
            modulation = transformer.modulate(torch.empty(1))[0]
            transformer.velocity(modulation, torch.empty(*pack.positions.shape, dit.mel_dim), conditions)
        with PeakMemory() as vocoding:
            vocode(model.code2wav_bigvgan_model, torch.empty(1, dit.mel_dim, frames))
    return max(evaluation.peak, vocoding.peak)


def speed(context: Context) -> Iterator[Finding]:
    """Measures seconds and real-time factor by length, in the second run of each, with torch's default TF32.

    Utterances as short as a window use CUDA graphs, as in a stage. Without graphs, the launches of some 13,000 kernels
    decide how long a window takes.
    """
    wave = load("cuda")
    graphed = _graphed(wave)[0]
    for count in LENGTHS:
        seconds = _seconds(wave.speech, wave.utterance(count))
        data = {"seconds": seconds}
        if count <= GRAPHED_CODES:
            data = {"eager_seconds": seconds}
            seconds = data["seconds"] = _seconds(graphed, wave.utterance(count))
        context.say(f"{count} codes: {data}")
        yield at_most(seconds / (count / CODES_PER_SECOND), 1.0, name=f"{count}_codes", unit="RTF", data=data)


def _graphed(wave: Wave) -> tuple[Speech, int]:
    """Returns a Speech with the CUDA graphs that a stage captures at its start, and the number of graphs.

    It is not cached, because the graphs' memory would count against the bound in `out_of_memory`.
    """
    speech = Speech(wave.model, wave.voices, use_graphs=True)
    with torch.inference_mode():
        return speech, speech.warm_up()


@torch.inference_mode()
def _seconds(speech: Speech, utterance: Utterance) -> float:
    began = 0.0
    for _ in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        speech.speak([utterance])
        torch.cuda.synchronize()
    return time.perf_counter() - began


def graphs(_: Context) -> Iterator[Finding]:
    """Compares the audio of windows from CUDA graphs with the same computation without graphs."""
    wave = load("cuda")
    speech, captured = _graphed(wave)
    sizes = window_blocks(speech.blocks)
    expected = len(graph_blocks(speech.blocks)) + len(sizes) * len(GRAPH_WINDOWS)
    yield Finding(f"{captured} captured", f"{expected} captured", ok=captured == expected, name="captured")
    for blocks in sizes:
        for count in GRAPH_WINDOWS:
            windows = [wave.utterance(blocks * speech.blocks.codes, seed) for seed in range(count)]
            with torch.inference_mode():
                pairs = zip(speech.speak(windows), wave.speak(*windows), strict=True)
                difference = max(float((ours - eager).abs().max()) for ours, eager in pairs)
            yield at_most(difference, GPU_TOLERANCE, name=f"{count}x{blocks}_blocks")


def repeated(_: Context) -> Finding:
    """Checks that the same request gives bit-equal samples twice. This fails if a kernel adds in varying order."""
    wave = load("cuda")
    first, second = (wave.speak(wave.utterance(72))[0] for _round in range(2))
    return at_most(float((first - second).abs().max()), 0.0)


def syncs(_: Context) -> Finding:
    """Checks that an evaluation and the vocoder never wait for the device. torch raises an error if they do."""
    wave = load("cuda")
    with torch.inference_mode():
        transformer = wave.speech.transformer
        _, conditions, mel = wave.speech.prepare([wave.utterance(72)])
        modulation = transformer.modulate(torch.tensor([0.3], device=transformer.device))[0]
        heard = torch.zeros(1, wave.dit.mel_dim, 144, device=transformer.device)
        torch.cuda.synchronize()
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            transformer.velocity(modulation, mel, conditions)
            vocode(wave.model.code2wav_bigvgan_model, heard)
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return Finding("none", "none")


def out_of_memory(_: Context) -> Finding:
    """Checks that a long utterance fails under a bound on torch's memory, and that the next utterance succeeds.

    The diffusion worker sets such a bound.
    """
    wave = load("cuda")
    total = torch.cuda.get_device_properties(0).total_memory
    short = wave.speak(wave.utterance(12))[0]
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + (256 << 20)) / total)
    try:
        wave.speak(wave.utterance(4096, steps=2))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        again = wave.speak(wave.utterance(12))[0]
        return Finding("the next one is equal", "equal", ok=bool(torch.equal(short, again)))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return Finding("no error", "torch.OutOfMemoryError", ok=False)
