"""Lets vllm-omni 0.30 run on a CPU, through the entry point that it has for platforms. For `make bench CASE=peer`."""


def plugin() -> str:
    """Returns the class of the platform."""
    return "peer_cpu.platform.CpuOmniPlatform"
