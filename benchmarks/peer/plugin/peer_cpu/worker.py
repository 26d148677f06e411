"""Workers whose model runners are vllm-omni's, on top of vLLM's CPU runner."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import vllm.v1.worker.cpu.shm  # noqa: F401  registers vLLM's CPU operators
from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm_omni.worker.gpu_ar_model_runner import GPUARModelRunner
from vllm_omni.worker.gpu_generation_model_runner import GPUGenerationModelRunner
from vllm_omni.worker.mixins import OmniWorkerMixin

CODES_FILE = "PEER_CODES"
"""Environment variable with the path of a file that gets a line of JSON, the codec tokens, for each code2wav call."""


class TokenRunner(GPUARModelRunner, CPUModelRunner):
    """vllm-omni's runner for thinker and talker. Its `super()` calls reach vLLM's CPU runner."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model, and set the talker's voice.

        vllm-omni's talker sets the voice in its first forward. On a GPU that is the profile run, which vLLM's CPU
        worker leaves out.
        """
        super().load_model(*args, **kwargs)
        if getattr(self.model, "model_stage", "") == "talker":
            self.model.voice_type = "Chelsie"
            self.model.forward = without_metadata(self.model.forward)


class AudioRunner(GPUGenerationModelRunner, CPUModelRunner):
    """vllm-omni's runner for code2wav, which also records the codec tokens that it gets."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model, and record its input: vllm-omni does not output the talker's tokens."""
        super().load_model(*args, **kwargs)
        file = os.environ.get(CODES_FILE)
        if file and getattr(self.model, "model_stage", "") == "code2wav":
            self.model.generate_audio = note_codes(self.model.generate_audio, Path(file))


def without_metadata(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the talker's `forward`, called without `sampling_metadata`.

    With the metadata, the talker writes into the prompts' token ids. vLLM keeps these only for penalties, so without a
    penalty there are none and the engine dies.
    """

    def without(*args: Any, sampling_metadata: object = None, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return without


def note_codes(speak: Callable[..., Any], file: Path) -> Callable[..., Any]:
    """Returns `speak`, with the codec tokens of each call appended to the file before it runs."""

    def noting(code: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(code.flatten().tolist()) + "\n")
        return speak(code, *args, **kwargs)

    return noting


class _CpuWorker(OmniWorkerMixin, cpu_worker.CPUWorker):
    model_runner_cls: type[CPUModelRunner]
    """vllm-omni reads this name."""

    def init_device(self) -> None:
        """Replaces `CPUModelRunner` in the module of vLLM's CPU worker, so that the worker makes our runner."""
        self.use_v2_model_runner = False
        cpu_worker.CPUModelRunner = self.model_runner_cls
        super().init_device()


class TokenWorker(_CpuWorker):
    """The worker for thinker and talker."""

    model_runner_cls = TokenRunner


class AudioWorker(_CpuWorker):
    """The worker for code2wav."""

    model_runner_cls = AudioRunner
