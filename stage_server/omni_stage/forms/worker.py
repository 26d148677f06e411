"""A process that tries forms, each in a fork that can be killed.

`python -m omni_stage.forms.worker SOCKET INFO`: INFO is the descriptor of a file with xgrammar's tokenizer information
as JSON. Jobs arrive on the socket as JSON packets: {"try": number, "kind": text} with the descriptor of a file that
holds the form, and {"leave": number}. The answers are {"number": number, "error": text or null, "bytes": of the
compiled form}. The process ends when its parent closes the socket. It imports neither vLLM nor a tokenizer, and has one
thread: a fork costs milliseconds.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import xgrammar as xgr

from omni_proto.runtime.process import (
    PACKET_BYTES,
    READY,
    ParentDeathSignal,
    confine,
    discard_output,
    used_address_space,
)
from omni_stage.forms.grammar import WrongFormError
from omni_stage.forms.trial import END_S, Form, Tokens, try_form

CPU_S: Final = 60
"""CPU seconds of one trial, compiling included. A string of maxLength 255 takes up to 19 s with 150,000 tokens, in
xgrammar alone, so that three of them pass where the threads have cores of their own."""
WORK_BYTES: Final = 2 << 30
"""Address space that one trial may add."""
THREADS: Final = 8
"""Threads that compile one form."""
_NICE: Final = 4
TOO_SLOW: Final = (
    f"it takes more than {CPU_S} s of CPU time to compile, {END_S:g} s for one token, or {WORK_BYTES >> 30} GiB of "
    "memory; simplify it: lower counts, fewer repetitions inside repetitions"
)


def main(descriptor: int, info_descriptor: int) -> None:
    """Serve jobs until the parent closes its end of the socket."""
    confine()
    discard_output()
    info = xgr.TokenizerInfo.deserialize_json(Path(f"/proc/self/fd/{info_descriptor}").read_text(encoding="utf-8"))
    os.close(info_descriptor)
    tokens = Tokens(info, partial(signal.setitimer, signal.ITIMER_PROF))
    with socket.socket(fileno=descriptor) as parent, selectors.DefaultSelector() as selector:
        selector.register(parent, selectors.EVENT_READ)
        parent.send(READY)
        trials: dict[int, tuple[int, int]] = {}
        while True:
            for key, _ in selector.select():
                if key.fileobj is parent:
                    message, descriptors, _, _ = socket.recv_fds(parent, PACKET_BYTES, 1)
                    if not message:
                        _kill(trials)
                        return
                    job = json.loads(message)
                    if "leave" in job:
                        _kill({job["leave"]: trials[job["leave"]]} if job["leave"] in trials else {})
                        continue
                    pid = _fork(job, descriptors[0], info, tokens, parent)
                    os.close(descriptors[0])
                    ended = os.pidfd_open(pid)
                    trials[job["try"]] = (pid, ended)
                    selector.register(ended, selectors.EVENT_READ, job["try"])
                else:
                    pid, ended = trials.pop(key.data)
                    selector.unregister(ended)
                    os.close(ended)
                    _, status = os.waitpid(pid, 0)
                    if status:
                        parent.send(json.dumps({"number": key.data, "error": TOO_SLOW, "bytes": 0}).encode())


def _fork(job: dict[str, Any], descriptor: int, info: xgr.TokenizerInfo, tokens: Tokens, parent: socket.socket) -> int:
    """Run a job in a fork, which sends the answer itself. Returns its process id."""
    end_with_parent = ParentDeathSignal(os.getpid())
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        end_with_parent()
        _limit()
        text = os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()
        compiler = xgr.GrammarCompiler(info, max_threads=min(THREADS, os.cpu_count() or 1))
        answer: dict[str, Any] = {"number": job["try"], "error": None, "bytes": 0}
        try:
            answer["bytes"] = try_form(compiler, tokens, Form(job["kind"], text))
        except WrongFormError as wrong:
            answer["error"] = str(wrong)
        parent.send(json.dumps(answer).encode())
        status = 0
    finally:
        # Not sys.exit: the fork must not run what its parent registered for its end.
        os._exit(status)


def _limit() -> None:
    # Trials yield to the engine, but get some of a busy machine.
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    used = used_address_space()
    resource.setrlimit(resource.RLIMIT_AS, (used + WORK_BYTES, used + WORK_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    sys.setrecursionlimit(20_000)


def _kill(trials: dict[int, tuple[int, int]]) -> None:
    for pid, _ in trials.values():
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
