"""Each hostile medium is refused for its header, refused by the decoder, or decoded within the reserved memory."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import coverage
import pytest
import pytest_asyncio

from omni_proto.stage_config import Limits, MediaLimits
from omni_stage.errors import (
    InvalidMediaError,
    InvalidRequestError,
    OmniStageError,
    PrepareTimeoutError,
    RequestTooLargeError,
)
from omni_stage.models.component import AudioPart, VideoPart
from omni_stage.service.media import worker_pool
from omni_stage.service.media.planning import check_media, judge_medium
from omni_stage.service.media.slots import MediaRules, MediaSlot
from omni_stage.service.media.worker_pool import DecoderProcess, MediaPool
from support.media.hostile_media import CORPUS, REFUSED, TAKEN, Hostile, taken
from support.processes.polling import until
from support.stages.scripted_stages import ScriptedComponent
from support.tables import each_row

RULES = MediaRules(Limits(), MediaLimits(), ScriptedComponent(), 4096, hear_videos=True)
PATIENCE_S = 200.0
"""Seconds that a decoder may take: many, so that a busy machine does not make a file seem hostile."""
LONG = ("opus of 5 minutes of silence", "mp3 of 12 minutes", "flac of 300 s of silence")
"""Media that take half of the time. Of each of their codecs there is another one."""
SLOW = "flac of 8 channels at 192 kHz, 40 s"
MEASURING_BYTES = 24 << 20
"""Memory that a run with coverage adds to each worker, because it also measures the workers."""
WORKER_BASE_BYTES = (128 << 20) + (MEASURING_BYTES if coverage.Coverage.current() else 0)
"""Memory of a decoder process without a job: the interpreter, Pillow, numpy, and FFmpeg after the first video."""


def judge(medium: Hostile, rules: MediaRules = RULES) -> MediaSlot:
    data = medium.make()
    slot = judge_medium(MediaSlot("f", medium.kind, "", data, None, len(data)), rules)
    check_media([slot], rules)
    return slot


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[MediaPool]:
    pool = MediaPool(1)
    yield pool
    pool.close()


def held_by_jobs() -> list[str]:
    """Returns the decoders' shared memory that this process maps or has open."""
    gc.collect()
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:media" in line]
    return mapped + [str(link) for link in Path("/proc/self/fd").iterdir() if "memfd:media" in os.path.realpath(link)]


@each_row("medium", [m for m in CORPUS if m.fate == REFUSED], ids=lambda m: m.name)
def test_header_is_enough_to_refuse(medium: Hostile) -> None:
    with pytest.raises((InvalidRequestError, RequestTooLargeError)) as caught:
        judge(medium)
    assert medium.says in str(caught.value)
    assert caught.value.details.field


def peak_bytes(pool: MediaPool) -> int:
    """Returns the largest resident size of the pool's process since the last call, shared memory included."""
    process = Path(f"/proc/{pool._idle[0]._process.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    (process / "clear_refs").write_text("5")
    return int(status["VmHWM"].split()[0]) << 10


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "medium", [pytest.param(m, id=m.name, marks=[pytest.mark.full] if m.name in LONG else []) for m in taken()]
)
async def test_decoder_holds_no_more_than_was_reserved(pool: MediaPool, medium: Hostile) -> None:
    slot = judge(medium)
    if medium.fate == TAKEN:
        (part,) = await pool.decode([slot], RULES, PATIENCE_S)
        if isinstance(part, AudioPart):
            assert part.sampling_rate_hz == 16_000
            assert abs(part.samples).max() < 1.5
        elif isinstance(part, VideoPart):
            assert part.frames.shape[1:] == (slot.frames.height, slot.frames.width, 3)
            assert 2 <= len(part.frames) <= slot.frames.count
        else:
            size = (slot.header.width, slot.header.height)
            assert (part.image.mode, part.image.size) == ("RGB", size[::-1] if "on its side" in medium.name else size)
    else:
        with pytest.raises(InvalidMediaError) as caught:
            await pool.decode([slot], RULES, PATIENCE_S)
        assert medium.says in str(caught.value)
        assert caught.value.details.field == "f"
    assert peak_bytes(pool) <= WORKER_BASE_BYTES + slot.held_bytes


@pytest.mark.asyncio(loop_scope="module")
async def test_a_job_ends_with_its_caller_and_with_its_time(pool: MediaPool) -> None:
    """If a long job is cancelled or exceeds its time limit, its decoder process is killed."""
    slow = judge(next(m for m in CORPUS if m.name == SLOW))
    quick = judge(next(m for m in CORPUS if m.name == "wav"))
    await pool.decode([quick], RULES, PATIENCE_S)
    (worker,) = pool._idle
    job = asyncio.create_task(pool.decode([slow], RULES, PATIENCE_S))
    await until(lambda: pool._busy)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert await asyncio.wait_for(asyncio.to_thread(worker._process.wait), PATIENCE_S) == -9
    assert len(await pool.decode([quick], RULES, PATIENCE_S)) == 1
    with pytest.raises(PrepareTimeoutError, match=r"timeouts\.prepare"):
        await pool.decode([slow], RULES, 0.05)
    assert len(await pool.decode([quick], RULES, PATIENCE_S)) == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_a_caller_that_leaves_a_short_job_costs_no_process(
    pool: MediaPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine even a short job may take longer than LEFT_S, after which its process would be killed.
    monkeypatch.setattr(worker_pool, "LEFT_S", PATIENCE_S)
    quick = judge(next(m for m in CORPUS if m.name == "wav"))
    await pool.decode([quick], RULES, PATIENCE_S)
    (worker,) = pool._idle
    job = asyncio.create_task(pool.decode([quick], RULES, PATIENCE_S))
    while not pool._busy:  # noqa: ASYNC110 - checked in every turn of the loop, because the job takes about 1 ms
        await asyncio.sleep(0)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert pool._idle == [worker]
    assert len(await pool.decode([quick], RULES, PATIENCE_S)) == 1
    assert pool._idle == [worker]


@pytest.mark.asyncio(loop_scope="module")
async def test_killed_processes_are_replaced_one_for_one(pool: MediaPool) -> None:
    """One process replaces a killed one, although both the pool and the next request ask for a new process."""
    slow, quick = (judge(next(m for m in CORPUS if m.name == name)) for name in (SLOW, "wav"))
    for _ in range(3):
        with pytest.raises(PrepareTimeoutError):
            await pool.decode([slow], RULES, 0.05)
        await asyncio.gather(*(pool.decode([quick], RULES, PATIENCE_S) for _ in range(2)))
    if pool._start is not None:
        await pool._start
    assert len(pool._idle) == 1
    assert not pool._busy


@pytest.mark.asyncio(loop_scope="module")
async def test_an_idle_process_that_was_killed_costs_no_request(pool: MediaPool) -> None:
    """An idle process may be killed, for example, by the kernel's out-of-memory killer."""
    quick = judge(next(m for m in CORPUS if m.name == "wav"))
    await pool.decode([quick], RULES, PATIENCE_S)
    (worker,) = pool._idle
    worker._process.kill()
    await asyncio.to_thread(worker._process.wait)
    assert len(await pool.decode([quick], RULES, PATIENCE_S)) == 1
    assert len(pool._idle) == 1


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("asked", [False, True], ids=["before it is asked", "before it reads the job"])
async def test_a_process_that_is_killed_ends_its_request(asked: bool) -> None:
    """The socket is then closed, or reset if it holds a job that nobody read."""
    worker, file = await DecoderProcess.start(), os.memfd_create("job")
    if asked:
        os.kill(worker._process.pid, signal.SIGSTOP)
        asking = asyncio.create_task(worker.ask(b"{}", file, PATIENCE_S))
        await asyncio.sleep(0)
        worker._process.kill()
    else:
        worker._process.kill()
        await asyncio.to_thread(worker._process.wait)
        asking = asyncio.create_task(worker.ask(b"{}", file, PATIENCE_S))
    with pytest.raises(InvalidMediaError, match="the decoder ended"):
        await asking
    os.close(file)
    worker.kill()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_client_that_leaves_while_a_process_starts_leaves_it_to_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the start ended with its client, clients that come and go would cause many starts, and none would be used."""
    starts, start, gate = 0, DecoderProcess.start, asyncio.Event()

    async def count() -> DecoderProcess:
        nonlocal starts
        starts += 1
        await gate.wait()
        return await start()

    monkeypatch.setattr(DecoderProcess, "start", count)
    pool = MediaPool(1)
    quick = judge(next(m for m in CORPUS if m.name == "wav"))
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.decode([quick], RULES, PATIENCE_S), 0.001)
    gate.set()
    assert len(await pool.decode([quick], RULES, PATIENCE_S)) == 1
    pool.close()
    assert starts == 1


async def test_a_process_that_is_too_slow_to_start_fails_its_request_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "START_TIMEOUT_S", 0.001)
    pool = MediaPool(1)
    with pytest.raises(OmniStageError, match=r"did not start within 0\.001 s"):
        await pool.decode([judge(next(m for m in CORPUS if m.name == "wav"))], RULES, PATIENCE_S)
    await pool.warm()
    assert not pool._idle, "warm() only logs the failure"
    pool.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_memory_of_a_job_is_freed_however_it_ends(pool: MediaPool) -> None:
    """This process maps a job's shared memory only as long as the job needs it, and then closes its files."""
    taken_, refused = (judge(next(m for m in CORPUS if m.name == name)) for name in ("png at the cap", "wav of NaN"))
    await pool.decode([taken_], RULES, PATIENCE_S)
    with pytest.raises(InvalidMediaError):
        await pool.decode([refused], RULES, PATIENCE_S)
    job = asyncio.create_task(pool.decode([taken_], RULES, PATIENCE_S))
    await until(lambda: pool._busy)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert held_by_jobs() == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"sizes": [[0, 1 << 40]]}, id="more samples than there is room for"),
        pytest.param({"sizes": [[0, -1]]}, id="a negative number of samples"),
        pytest.param({"sizes": [[0, 1], [0, 1]]}, id="more media than were sent"),
        pytest.param({"sizes": "1"}, id="text"),
        pytest.param({"sizes": [1]}, id="a number alone"),
        pytest.param({"sizes": [[2, 1]]}, id="more frames than there is room for"),
        pytest.param({"error": ["x"], "medium": "0"}, id="an error of another form"),
    ],
)
async def test_a_worker_that_was_taken_over_is_not_believed(
    pool: MediaPool, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of a decoder process are checked, because a hostile file may have taken control of the process."""

    async def ask(*_: object) -> dict[str, Any]:
        return answer

    monkeypatch.setattr("omni_stage.service.media.worker_pool.DecoderProcess.ask", ask)
    with pytest.raises(InvalidMediaError):
        await pool.decode([judge(next(m for m in CORPUS if m.name == "wav"))], RULES, PATIENCE_S)
