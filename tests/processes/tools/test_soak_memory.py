"""The soak's memory samples of a real process tree, and which changes count as growth."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from benchmarks.harness.memory import find_engines, peak_mib, reset_peak, rss_mib
from checks.soak.memory import (
    ENGINE,
    GROWTH_LIMIT_MIB,
    HELPER,
    LEAST_SAMPLES,
    SERVER,
    SETTLE_S,
    MemoryLog,
    Sample,
    grown_mib,
    sample_tree,
)

from support.processes.polling import PATIENCE_S

GROW_MIB = 40
GRANDCHILD = f"""
import sys
held = b""
print("up", flush=True)
for line in sys.stdin:
    held = b"x" * ({GROW_MIB} << 20) if line.strip() == "grow" else b""
    print(len(held), flush=True)
"""
SERVER_CODE = """
import subprocess, sys
engine = subprocess.Popen([sys.executable, "-c", sys.argv[1], "VLLM::EngineCore"], stdin=0, stdout=1)
helper = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
engine.wait()
helper.stdin.close()
helper.wait()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """A process with an engine and a helper as children. The engine inherits its stdin and reads the commands."""
    command = [sys.executable, "-c", SERVER_CODE, GRANDCHILD]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    # Until exec, a child has its parent's command line, which also contains the engine's name.
    while {sample.role for sample in sample_tree(process.pid, time.time())} != {SERVER, ENGINE, HELPER}:
        time.sleep(0.01)
    yield process
    process.communicate(timeout=PATIENCE_S)


def send(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    process.stdout.readline()


def test_every_process_of_the_tree_is_sampled_by_role(server: subprocess.Popen[str]) -> None:
    samples = {sample.role: sample for sample in sample_tree(server.pid, time.time())}
    assert samples.keys() == {SERVER, ENGINE, HELPER}
    assert samples[SERVER].pid == server.pid
    assert find_engines(server.pid) == [samples[ENGINE].pid]
    assert all(sample.rss_mib > 1 and sample.age_s >= 0 for sample in samples.values())


def test_growth_of_the_engine_is_the_engines(server: subprocess.Popen[str]) -> None:
    before = {sample.pid: sample for sample in sample_tree(server.pid, time.time())}
    (engine,) = find_engines(server.pid)
    send(server, "grow")
    after = {sample.pid: sample for sample in sample_tree(server.pid, time.time())}
    grown = {sample.role: sample.rss_mib - before[pid].rss_mib for pid, sample in after.items()}
    assert grown[ENGINE] > GROW_MIB - 5
    assert max(grown[SERVER], grown[HELPER]) < 5
    assert rss_mib(engine) == pytest.approx(after[engine].rss_mib, abs=2)
    send(server, "shrink")
    assert peak_mib(engine) > GROW_MIB
    reset_peak(engine)
    assert peak_mib(engine) < before[engine].rss_mib + 5


def test_a_process_that_has_ended_has_no_samples() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert sample_tree(process.pid, time.time()) == []


def life(sizes_mib: list[float], *, role: str = ENGINE, pid: int = 1, since_s: float = SETTLE_S) -> list[Sample]:
    return [Sample(role, pid, 0.0, since_s + 5 * number, size) for number, size in enumerate(sizes_mib)]


N = LEAST_SAMPLES
OVER = GROWTH_LIMIT_MIB + 1


@pytest.mark.parametrize(
    ("samples", "grown"),
    [
        pytest.param(life([100.0] * N), 0.0, id="level"),
        pytest.param(life([100.0] * (N - 1) + [100 + OVER]), 0.0, id="one peak at the end"),
        pytest.param(life([100.0] * (N // 2) + [100 + OVER] * (N // 2)), OVER, id="a step that stays"),
        pytest.param(life([100.0 + OVER] * (N // 2) + [100.0] * (N // 2)), -OVER, id="gives back"),
        pytest.param(life([100.0] * (N - 1)), None, id="too short"),
        pytest.param(life([0.0] * N, since_s=0.0)[:N] + life([100.0] * 3), None, id="young until just now"),
        pytest.param(life([0.0, 90.0], since_s=0.0) + life([100.0] * N), 0.0, id="starting is not counted"),
    ],
)
def test_what_counts_as_growth(samples: list[Sample], grown: float | None) -> None:
    log = MemoryLog()
    log.add("talker", samples)
    assert [growth.mib for growth in log.growths()] == ([] if grown is None else [grown])
    assert [problem.split(" in ")[0] for problem in log.problems()] == (
        [f"talker's engine grew by {OVER:g} MiB"] if grown == OVER else []
    )


def test_a_restarted_process_starts_a_new_series() -> None:
    log = MemoryLog()
    log.add("talker", life([100.0] * (N - 1), pid=1))
    log.add("talker", life([500.0] * N, pid=2))
    log.add("talker", life([50.0] * N, pid=3, role=SERVER))
    assert log.report() == {
        "talker": {
            ENGINE: {"processes": 2, "most_mib": 500, "longest_watched_minutes": 1.9, "grown_mib": 0.0},
            SERVER: {"processes": 1, "most_mib": 50, "longest_watched_minutes": 1.9, "grown_mib": 0.0},
        }
    }
    assert log.problems() == []


def test_growth_of_too_little() -> None:
    with pytest.raises(ValueError, match="four"):
        grown_mib(life([1.0, 2.0, 3.0]))
