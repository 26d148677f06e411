"""token2wav without vLLM: our block-wise transformer and vocoder against transformers' dense ones, on any device.

On a GPU with the published shapes and random weights; on a CPU with small shapes of the same structure, and the
published ones on meta tensors where only sizes matter.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.checks import Context, Finding, at_most
from benchmarks.gpu.peak import PeakMemory
from benchmarks.gpu.sizes import WAVE_BASE_BYTES, WAVE_BYTES_PER_CODE, WAVE_TENSOR_BYTES_PER_CODE

PUBLISHED = Path(__file__).parents[2] / "tests" / "data" / "published" / "qwen25_omni_7b.config.json"
LENGTHS = (12, 72, 750, 4096)
"""Codec tokens: a first window, a later one, 15 seconds, and the longest reply."""
CODES_PER_SECOND = 50
GRAPHED_CODES = 72
"""A window has so many at most."""
STEPS, CPU_STEPS = 10, 3
"""Time points of the solver: the release's, and as few as still integrate."""
CPU_TOLERANCE, GPU_TOLERANCE = 1e-5, 1e-4
"""float32 of two orders of the same sums; a GPU picks kernels by the shape, so that batches differ more."""


@dataclass(frozen=True, slots=True)
class Graphs:
    """A solver's step and a vocoder that replay what was captured for inputs of these shapes."""

    step: Any
    vocoder: Any
    step_inputs: tuple[torch.Tensor, ...]
    vocoder_inputs: tuple[torch.Tensor, ...]
    captured: tuple[bool, bool]


@dataclass(slots=True)
class Wave:
    """A token2wav model of transformers, and ours over its weights."""

    model: Any
    voices: dict[str, Any]
    codes: int
    """Size of the codec vocabulary."""

    @property
    def dit(self) -> Any:
        """transformers' transformer."""
        return self.model.code2wav_dit_model

    def prepare(self, utterances: Sequence[Any]) -> tuple[Any, Any, Any, torch.Tensor]:
        """Transformer, pack, conditions and start noise of utterances."""
        from omni_stage.models.qwen2_5_omni.token2wav.wave.blocks import pack_blocks
        from omni_stage.models.qwen2_5_omni.token2wav.wave.solver import make_noise
        from omni_stage.models.qwen2_5_omni.token2wav.wave.transformer import BlockTransformer

        transformer = BlockTransformer(self.dit)
        frames = [utterance.codes.shape[0] * self.dit.repeats for utterance in utterances]
        pack = pack_blocks(frames, self.dit.block_size)
        rows = [transformer.encode_voice(self.voices[utterance.voice]) for utterance in utterances]
        conditions = transformer.condition(
            pack, [item.codes for item in utterances], rows, [item.guidance for item in utterances]
        )
        noise = [
            make_noise(item.seed, count, self.dit.mel_dim)[0] for item, count in zip(utterances, frames, strict=True)
        ]
        return transformer, pack, conditions, pack.fill(noise).to(transformer.device)

    @torch.inference_mode()
    def speak(self, *utterances: Any, graphs: Graphs | None = None) -> list[torch.Tensor]:
        """Audio float32 [samples] of each, on the device, all through one solver's loop; vocoded one by one."""
        from omni_stage.models.qwen2_5_omni.token2wav.wave.solver import time_points

        transformer, pack, conditions, mel = self.prepare(utterances)
        step, vocoder = (graphs.step, graphs.vocoder) if graphs else (self.step(transformer), self.vocode)
        for begin, end in pairwise(time_points(utterances[0].steps, transformer.device)):
            mel = step(mel, begin, end, *conditions)
        return [vocoder(one.T[None].contiguous())[0] for one in pack.split(mel)]

    def step(self, transformer: Any) -> Callable[..., torch.Tensor]:
        """One step of the solver, a function of tensors alone."""
        from omni_stage.models.qwen2_5_omni.token2wav.wave.solver import advance
        from omni_stage.models.qwen2_5_omni.token2wav.wave.transformer import Conditions

        def advanced(mel: torch.Tensor, begin: torch.Tensor, end: torch.Tensor, *tables: torch.Tensor) -> torch.Tensor:
            conditions = Conditions(*tables)
            return advance(lambda moment, value: transformer.velocity(moment, value, conditions), mel, begin, end)

        return advanced

    def vocode(self, mel: torch.Tensor) -> torch.Tensor:
        """Samples [N, samples] of mel [N, bins, frames]."""
        from omni_stage.models.qwen2_5_omni.token2wav.wave.vocoder import vocode

        return vocode(self.model.code2wav_bigvgan_model, mel)

    @torch.inference_mode()
    def capture(self, utterance: Any) -> Graphs:
        """CUDA graphs for utterances of this one's length, as a stage captures them for its windows."""
        from omni_stage.models.qwen2_5_omni.token2wav.wave.solver import time_points
        from omni_stage.models.shared.graphs import CudaCapture, GraphedFunction

        transformer, pack, conditions, mel = self.prepare([utterance])
        capture = CudaCapture(transformer.device)
        times = time_points(utterance.steps, transformer.device)
        step, vocoder = GraphedFunction(self.step(transformer), capture), GraphedFunction(self.vocode, capture)
        heard = pack.split(mel)[0].T[None].contiguous()
        return Graphs(
            step,
            vocoder,
            step_inputs=(mel, times[0], times[1], *conditions),
            vocoder_inputs=(heard,),
            captured=(step.warm_up(mel, times[0], times[1], *conditions), vocoder.warm_up(heard)),
        )

    @torch.inference_mode()
    def speak_densely(self, utterance: Any) -> torch.Tensor:
        """transformers' own audio of the same codes from the same noise, float32 [samples]."""
        voice, device = self.voices[utterance.voice], self.dit.proj_out.weight.device
        sampled = torch.randn
        noise = self.prepare([utterance])[3].flatten(0, 1)[None, : utterance.codes.shape[0] * self.dit.repeats]

        def same_noise(*_: Any, **__: Any) -> torch.Tensor:
            return noise.clone()

        try:
            # transformers draws its start from the global generator, on the device: not the numbers of the CPU's.
            torch.randn = same_noise
            audio: torch.Tensor = self.model(
                utterance.codes[None].to(device),
                conditioning=voice.speaker.to(device),
                reference_mel=voice.reference_mel.to(device),
                num_steps=utterance.steps,
                guidance_scale=utterance.guidance,
            )
        finally:
            torch.randn = sampled
        # transformers' vocoder ends on the CPU.
        return audio.reshape(-1).to(device)

    def utterance(self, codes: int, seed: int = 0, steps: int = STEPS) -> Any:
        """Random codes."""
        from omni_stage.models.qwen2_5_omni.token2wav.wave.utterance import Utterance

        drawn = torch.randint(self.codes, (codes,), generator=torch.Generator().manual_seed(100 + seed))
        return Utterance(codes=drawn, voice="a", seed=seed, steps=steps, guidance=0.5)


@cache
def load(device: str) -> Wave:
    """Published shapes on a GPU, small ones on a CPU; random weights that carry a signal through every layer."""
    from support.wave_models import make_wave_model, make_wave_voices, strength

    if device == "cuda":
        model = make_published("cuda")
        generator = torch.Generator("cuda").manual_seed(0)
        for name, parameter in model.named_parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 100
            parameter.data.normal_(0, strength(name) * fan_in**-0.5, generator=generator)
    else:
        # Few layers: a check must take seconds on a CPU; the tests have the published depth.
        model = make_wave_model("small blocks")
    return Wave(model, make_wave_voices(model, "a"), model.config.dit_config.num_embeds)


def make_published(device: str) -> Any:
    """transformers' token2wav with the release's shapes, float32, its weights not set."""
    from transformers import Qwen2_5OmniToken2WavConfig
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

    config = json.loads(PUBLISHED.read_text(encoding="utf-8"))["token2wav_config"]
    with torch.device(device):
        return Qwen2_5OmniToken2WavModel(Qwen2_5OmniToken2WavConfig(**config)).float().eval().requires_grad_(False)


@contextmanager
def full_precision() -> Iterator[None]:
    """Without TF32, which cuDNN uses by default: it would hide what is compared."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def tolerance(context: Context) -> float:
    """Largest difference of a sample that rounding explains."""
    return GPU_TOLERANCE if context.on_gpu else CPU_TOLERANCE


def velocity(context: Context) -> Iterator[Finding]:
    """One evaluation of the transformer: attention by blocks against attention under a dense mask."""
    wave = load(context.device)
    voice, device = wave.voices["a"], wave.dit.proj_out.weight.device
    for count in (12, 29, 72):
        utterance = wave.utterance(count)
        frames, moment = count * wave.dit.repeats, torch.tensor(0.3, device=device)
        with torch.inference_mode(), full_precision():
            transformer, pack, conditions, mel = wave.prepare([utterance])
            (ours,) = pack.split(transformer.velocity(moment, mel, conditions))
            given, dropped = wave.dit(
                hidden_states=pack.split(mel)[0][None],
                condition_vector=voice.reference_mel.to(device),
                speaker_embedding=voice.speaker.to(device)[:, None].expand(1, frames, -1),
                quantized_code=utterance.codes[None].to(device),
                time_step=moment,
                apply_cfg=True,
            ).chunk(2)
            expected = (given + (given - dropped) * utterance.guidance)[0]
        yield at_most(float((ours - expected).abs().max()), tolerance(context), name=f"{count}_codes")


def parity(context: Context) -> Iterator[Finding]:
    """Audio of codes against transformers', from the same noise; silence would prove nothing."""
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
    """Utterances of four lengths in one pack, against each alone."""
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
    """A later window's audio against transformers' own of the same codes: what a window hears is all that it needs."""
    from omni_stage.models.qwen2_5_omni.token2wav.windows import next_window

    wave = load(context.device)
    block = wave.dit.block_size // wave.dit.repeats
    window = next_window(4 * block, 12 * block, ended=False, block_codes=block)
    if window is None:
        return Finding("no window", "a window", ok=False)
    heard = wave.utterance(window.end - window.begin, steps=STEPS if context.on_gpu else CPU_STEPS)
    with full_precision():
        return at_most(float((wave.speak(heard)[0] - wave.speak_densely(heard)).abs().max()), tolerance(context))


def memory(context: Context) -> Iterator[Finding]:
    """Peak bytes by length, published shapes: linear, and what docs/gpu-sizing.md counts on."""
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
    """Peak of one evaluation, and of the vocoder, whichever is larger."""
    from omni_stage.models.qwen2_5_omni.token2wav.wave.blocks import pack_blocks
    from omni_stage.models.qwen2_5_omni.token2wav.wave.transformer import BlockTransformer, VoiceRows
    from omni_stage.models.qwen2_5_omni.token2wav.wave.vocoder import vocode

    model = _published_on_meta()
    dit = model.code2wav_dit_model
    frames = count * dit.repeats
    pack = pack_blocks([frames], dit.block_size)
    with torch.inference_mode(), torch.device("meta"):
        rows = VoiceRows(torch.empty(dit.hidden_size), torch.empty(dit.hidden_size))
        with PeakMemory() as evaluation:
            transformer = BlockTransformer(dit)
            conditions = transformer.condition(pack, [torch.zeros(count, dtype=torch.int64)], [rows], [0.5])
            transformer.velocity(torch.tensor(0.3), torch.empty(*pack.positions.shape, dit.mel_dim), conditions)
        with PeakMemory() as vocoding:
            vocode(model.code2wav_bigvgan_model, torch.empty(1, dit.mel_dim, frames))
    return max(evaluation.peak, vocoding.peak)


def speed(context: Context) -> Iterator[Finding]:
    """Seconds and real-time factor by length, as installed (TF32 as torch has it), the second run of each.

    Short ones with CUDA graphs, as a stage runs its windows: without them a window takes as long as the launches of
    some 40,000 kernels.
    """
    wave = load("cuda")
    for count in LENGTHS:
        seconds = _seconds(wave, count, None)
        data = {"seconds": seconds}
        if count <= GRAPHED_CODES:
            data = {"eager_seconds": seconds}
            seconds = data["seconds"] = _seconds(wave, count, wave.capture(wave.utterance(count)))
        context.say(f"{count} codes: {data}")
        yield at_most(seconds / (count / CODES_PER_SECOND), 1.0, name=f"{count}_codes", unit="RTF", data=data)


def _seconds(wave: Wave, count: int, graphs: Graphs | None) -> float:
    for _ in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        wave.speak(wave.utterance(count), graphs=graphs)
        torch.cuda.synchronize()
    return time.perf_counter() - began


def graphs(context: Context) -> Iterator[Finding]:
    """A CUDA graph of a solver's step and of the vocoder, against the functions themselves, and their times."""
    wave = load("cuda")
    with torch.inference_mode():
        graphed = wave.capture(wave.utterance(72))
        transformer = wave.prepare([wave.utterance(72)])[0]
        for name, function, ours, inputs, captured in (
            ("step", wave.step(transformer), graphed.step, graphed.step_inputs, graphed.captured[0]),
            ("vocoder", wave.vocode, graphed.vocoder, graphed.vocoder_inputs, graphed.captured[1]),
        ):
            if not captured:
                yield Finding("not captured", "captured", ok=False, name=name)
                continue
            difference = float((ours(*inputs) - function(*inputs)).abs().max())
            data = {"eager_ms": _milliseconds(function, inputs), "graph_ms": _milliseconds(ours, inputs)}
            context.say(f"{name}: {data}")
            yield at_most(difference, GPU_TOLERANCE, name=name, data=data)


def repeated(_: Context) -> Finding:
    """The same request twice: the same samples, bit for bit. A kernel that adds in any order would show."""
    wave = load("cuda")
    first, second = (wave.speak(wave.utterance(72))[0] for _round in range(2))
    return at_most(float((first - second).abs().max()), 0.0)


def _milliseconds(function: Any, inputs: tuple[torch.Tensor, ...], rounds: int = 20) -> float:
    function(*inputs)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(rounds):
        function(*inputs)
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began) / rounds


def syncs(_: Context) -> Finding:
    """An evaluation and the vocoder wait for the device nowhere: torch raises where they would."""
    from omni_stage.models.qwen2_5_omni.token2wav.wave.vocoder import vocode

    wave = load("cuda")
    with torch.inference_mode():
        transformer, _pack, conditions, mel = wave.prepare([wave.utterance(72)])
        moment = torch.tensor(0.3, device=transformer.device)
        heard = torch.zeros(1, wave.dit.mel_dim, 144, device=transformer.device)
        torch.cuda.synchronize()
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            transformer.velocity(moment, mel, conditions)
            vocode(wave.model.code2wav_bigvgan_model, heard)
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return Finding("none", "none")


def out_of_memory(_: Context) -> Finding:
    """A bound on torch's memory, as the diffusion worker sets it, fails the long utterance and not the next one."""
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
