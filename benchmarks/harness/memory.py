"""Reads the memory of stage servers and of their engines, which are their child processes."""

from __future__ import annotations

from pathlib import Path

import psutil

MIB = 2**20
_ENGINE = "EngineCore"
"""Part of the title that vLLM 0.32 gives its engine's process (`v1/engine/core.py`, `set_process_title`)."""


def find_engines(parent: int) -> list[int]:
    """Returns the process ids of the engines among a process's descendants."""
    return [process.pid for process in psutil.Process(parent).children(recursive=True) if is_engine(process)]


def is_engine(process: psutil.Process) -> bool:
    """Returns whether a process is an engine; False if it has ended."""
    try:
        return any(_ENGINE in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def rss_mib(pid: int) -> float:
    """Returns the resident memory of a process, in MiB."""
    return float(psutil.Process(pid).memory_info().rss / MIB)


def reset_peak(pid: int) -> None:
    """Reset the recorded peak of a process's resident memory: value 5 in proc_pid_clear_refs(5)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def peak_mib(pid: int) -> float:
    """Returns a process's peak resident memory since its start or `reset_peak`, in MiB: VmHWM of proc_pid_status(5)."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmHWM")
