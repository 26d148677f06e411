"""How many bytes of tensors and media a stage may hold where its configuration sets no limit."""

from __future__ import annotations

from pathlib import Path

BUDGET_SHARE = 0.25
"""Share of the memory limit that tensors and media may hold."""
_FALLBACK_LIMIT = 2 << 30
_CGROUP_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_MEMINFO = Path("/proc/meminfo")


def parse_cgroup_limit(text: str) -> int | None:
    """Returns the bytes in the text of a cgroup limit file; None for "max" and for the huge numbers that mean no
    limit."""
    stripped = text.strip()
    if not stripped.isdigit():
        return None
    value = int(stripped)
    return value if 0 < value < 1 << 50 else None


def parse_memory_total(meminfo: str) -> int | None:
    """Returns MemTotal in bytes from the text of /proc/meminfo; None if the text does not contain it."""
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if name == "MemTotal" and fields and fields[0].isdigit():
            return int(fields[0]) * 1024
    return None


def default_byte_budget() -> int:
    """Returns 25 %, in bytes, of the cgroup's memory limit, else of the machine's memory, else of 2 GiB."""
    for path in _CGROUP_FILES:
        if path.is_file() and (limit := parse_cgroup_limit(path.read_text(encoding="ascii"))):
            return int(limit * BUDGET_SHARE)
    total = parse_memory_total(_MEMINFO.read_text(encoding="ascii")) if _MEMINFO.is_file() else None
    return int((total or _FALLBACK_LIMIT) * BUDGET_SHARE)
