"""The platform that lets vllm-omni run on a CPU: vLLM's CPU platform plus vllm-omni's additions to the interface."""

from __future__ import annotations

import psutil
import torch
from vllm.platforms.cpu import CpuPlatform
from vllm_omni.platforms.interface import OmniPlatform, OmniPlatformEnum


class CpuOmniPlatform(OmniPlatform, CpuPlatform):
    """The CPU as vllm-omni's only device, on which all stages run."""

    _omni_enum = OmniPlatformEnum.OOT

    @classmethod
    def get_omni_ar_worker_cls(cls) -> str:
        """Returns the path of the worker for thinker and talker."""
        return "peer_cpu.worker.TokenWorker"

    @classmethod
    def get_omni_generation_worker_cls(cls) -> str:
        """Returns the path of the worker for code2wav."""
        return "peer_cpu.worker.AudioWorker"

    @classmethod
    def get_default_stage_config_path(cls) -> str:
        """Returns the folder in which vllm-omni keeps its deployments."""
        return "vllm_omni/deploy"

    @classmethod
    def get_diffusion_attn_backend_cls(
        cls, selected_backend: str | None, head_size: int, allow_trtllm_default: bool = False
    ) -> str:
        """Returns torch's own attention."""
        from vllm_omni.diffusion.attention.backends.registry import DiffusionAttentionBackendEnum

        return DiffusionAttentionBackendEnum.TORCH_SDPA.get_path()

    @classmethod
    def supports_torch_inductor(cls) -> bool:
        """Returns False: all engines of the comparison run eagerly."""
        return False

    @classmethod
    def get_torch_device(cls, local_rank: int | None = None) -> torch.device:
        """Returns the CPU."""
        return torch.device("cpu")

    @classmethod
    def get_device_count(cls) -> int:
        """Returns 1."""
        return 1

    @classmethod
    def get_device_version(cls) -> str | None:
        """Returns None: a CPU has none."""
        return None

    @classmethod
    def synchronize(cls) -> None:
        """Do nothing: a CPU runs no work asynchronously."""

    @classmethod
    def get_free_memory(cls, device: torch.device | None = None) -> int:
        """Returns the machine's free memory, in bytes."""
        return psutil.virtual_memory().available

    @classmethod
    def get_device_memory(cls, device: torch.device | None = None) -> tuple[int, int]:
        """Returns the machine's free memory and its total memory, in bytes."""
        memory = psutil.virtual_memory()
        return memory.available, memory.total
