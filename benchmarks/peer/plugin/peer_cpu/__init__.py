"""Lets vllm-omni 0.30 run on a CPU, through its entry point for platforms. For `make bench CASE=peer`."""


def plugin() -> str:
    """Returns the path of the platform's class."""
    return "peer_cpu.platform.CpuOmniPlatform"
