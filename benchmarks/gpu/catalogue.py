"""All checks of `make gpu`, in the order in which they run."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from benchmarks.gpu.checks import Check, Context, Finding, Part, Run

_MODEL = ("gpu", "vllm", "transformers", "weights")
_TABLE: tuple[tuple[Part, str, str, tuple[str, ...]], ...] = (
    # part, name, function in benchmarks.gpu, needs
    ("torch", "environment.versions", "environment:versions", ()),
    ("torch", "environment.driver", "environment:driver", ("gpu",)),
    ("torch", "environment.capability", "environment:capability", ("gpu",)),
    ("torch", "environment.compilers", "environment:compilers", ()),
    ("torch", "environment.shared_memory", "environment:shared_memory", ("gpu",)),
    ("torch", "environment.read_only_root", "environment:read_only", ("gpu", "root")),
    ("torch", "environment.ceilings", "qwen3_omni.shared_gpu:ceilings", ("gpu",)),
    ("torch", "token2wav.attention", "token2wav.wave:velocity", ("transformers",)),
    ("torch", "token2wav.parity", "token2wav.wave:parity", ("transformers",)),
    ("torch", "token2wav.batch", "token2wav.wave:batch", ("transformers",)),
    ("torch", "token2wav.windows", "token2wav.wave:windows", ("transformers",)),
    ("torch", "token2wav.memory", "token2wav.wave:memory", ("transformers",)),
    ("torch", "token2wav.graphs", "token2wav.wave:graphs", ("gpu", "transformers")),
    ("torch", "token2wav.repeated", "token2wav.wave:repeated", ("gpu", "transformers")),
    ("torch", "token2wav.syncs", "token2wav.wave:syncs", ("gpu", "transformers")),
    ("torch", "token2wav.speed", "token2wav.wave:speed", ("gpu", "transformers")),
    ("torch", "token2wav.out_of_memory", "token2wav.wave:out_of_memory", ("gpu", "transformers")),
    ("torch", "qwen3_omni.chunks", "qwen3_omni.audio:chunks", ("transformers",)),
    ("torch", "qwen3_omni.together", "qwen3_omni.audio:together", ("transformers",)),
    ("torch", "qwen3_omni.code2wav_speed", "qwen3_omni.audio:speed", ("gpu", "transformers")),
    ("torch", "qwen3_omni.predictor", "qwen3_omni.predictor:cost", ("gpu", "transformers")),
    ("torch", "sharing.steps", "qwen3_omni.shared_gpu:steps", ("gpu", "transformers")),
    ("torch", "qwen3_omni.experts", "qwen3_omni.experts:rounding", ("gpu", "transformers")),
    ("whole", "environment.flashinfer", "environment:flashinfer", ("gpu", "vllm")),
    ("whole", "environment.fork", "environment:fork", ("vllm",)),
    ("whole", "sharing.arithmetic", "memory.sharing:arithmetic", ()),
    ("whole", "rows_out", "stages.rows:rows_out", ("vllm", "transformers")),
    ("whole", "rows_in", "stages.rows:rows_in", ("vllm", "transformers")),
    ("whole", "syncs", "stages.rows:syncs", ("gpu", "vllm", "transformers")),
    ("whole", "qwen3_omni.codes", "qwen3_omni.codes:codes", ("vllm", "transformers")),
    ("whole", "qwen3_omni.syncs", "qwen3_omni.codes:syncs", ("gpu", "vllm", "transformers")),
    ("whole", "start", "stages.serving:start", ("vllm",)),
    ("whole", "speed", "stages.serving:speed", ("gpu", "vllm")),
    ("whole", "sharing.starts", "memory.sharing:starts", ("gpu", "vllm")),
    ("whole", "faults", "stages.serving:faults", ("vllm",)),
    ("whole", "tensor_parallel", "stages.rows:tensor_parallel", ("2 gpus", "vllm")),
    ("whole", "published", "released.published:answers", _MODEL),
    ("whole", "published.golden", "released.published:golden", _MODEL),
)


def _find(place: str) -> Run:
    """Returns a function that imports the check's module only when it runs.

    A machine may lack the packages that checks of the other part need.
    """
    module, _, name = place.partition(":")

    def run(context: Context) -> Finding | Iterable[Finding]:
        found: Finding | Iterable[Finding] = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), name)(context)
        return found

    return run


CHECKS = tuple(Check(name, part, _find(place), needs) for part, name, place, needs in _TABLE)
