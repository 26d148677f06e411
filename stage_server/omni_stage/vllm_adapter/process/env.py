"""The process environment that the stage server and its engine run in. vLLM 0.32 reads it while vLLM is imported.

Each entry point (`python -m omni_stage`, `OmniLLM`) calls `apply_environment` before vLLM is imported. Calling it again
is harmless. Importing this module imports neither vLLM nor torch.

Engine processes end with the stage server and do not get its signals: vLLM 0.32's engine core does not notice its
parent's death, and aborts its requests on the first SIGTERM or SIGINT, which a terminal or a supervisor sends to the
whole process group. Cores that are forked (template.py) are bound to their parent before they run anything. Where vLLM
spawns a process, our plugin calls `bind_to_parent`: every engine process loads plugins first (`v1/engine/core.py`,
`v1/worker/worker_base.py`).

vLLM 0.32 sends spans of every process of an engine (`EngineCoreProc init`, `Load model`, ...) wherever
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set: `v1/engine/core.py` and `v1/executor/multiproc_executor.py` call
`vllm.tracing.maybe_init_worker_tracer` unconditionally. Its gRPC exporter supports no TLS and sets no service name, and
the spans belong to no request. The stage sends its own spans to that endpoint, and hides it from the engine.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from omni_proto.runtime.otlp import ENDPOINTS

BIND_TO_PARENT = "OMNI_ENGINE_PARENT"
"""Process id of the stage server: its engine processes end with it (`bind_to_parent`)."""
NO_BIND_TO_PARENT = "OMNI_NO_BIND_TO_PARENT"
"""Set to 1 to let engine processes outlive a killed stage server, for a debugger."""

_REQUIRED: dict[str, str] = {
    # The V2 runner is the default on GPUs in 0.32, but our hooks are for V1 (docs/adr/0002).
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Keep the random suffix that makes vLLM's internal request ids unique.
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "0",
}
_DEFAULTS: dict[str, str] = {
    # Weights are fetched before the server starts; a typo must not become a download.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TOKENIZERS_PARALLELISM": "false",
    # Several engines share a machine's cores in a local run: waiting threads must not spin, nor be pinned together.
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # NumPy's and OpenCV's OpenBLAS start threads when they are imported: nothing here needs them, and only a process
    # of one thread can be forked (template.py).
    "OPENBLAS_NUM_THREADS": "1",
    # FlashInfer compiles its sampling kernels with nvcc when they are first used, and images have no nvcc. vLLM's own
    # sampler does not need it. Set this to 1 where compiled kernels are installed (flashinfer-jit-cache).
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # torch's gloo listens without authentication on a dozen ports of the host name's address, which in a pod is the
    # pod's address. All ranks of an engine are in one pod, so loopback is enough.
    "GLOO_SOCKET_IFNAME": "lo",
}
_GPU_DEVICES = ("nvidiactl", "dxg")
"""Device files in /dev that exist if this process can use a GPU. dxg is WSL's."""


def apply_environment(environ: MutableMapping[str, str] | None = None, devices: Path = Path("/dev")) -> None:
    """Set the variables that the engine needs, and defaults that the user may override. `devices`: the device files."""
    target = os.environ if environ is None else environ
    target.update(_REQUIRED)
    for name, value in _DEFAULTS.items():
        target.setdefault(name, value)
    # With a GPU, vLLM loads with many threads and then serves with one, unless the environment sets a number. So set no
    # number: with more threads, those that wait for work would take time from the thread that launches kernels.
    if "OMP_NUM_THREADS" not in target and not any((devices / name).exists() for name in _GPU_DEVICES):
        target["OMP_NUM_THREADS"] = str(usable_cpus())
    if target.get(NO_BIND_TO_PARENT) == "1":
        target.pop(BIND_TO_PARENT, None)
    else:
        target[BIND_TO_PARENT] = str(os.getpid())


def usable_cpus() -> int:
    """Returns how many CPUs this process may run on (its affinity mask, which a container's cpuset narrows)."""
    return max(1, len(os.sched_getaffinity(0)))


_READ_BY_VLLM = ENDPOINTS[0]


@contextmanager
def without_load_spans() -> Iterator[None]:
    """Processes started within this context do not see the OTLP endpoint, so vLLM exports no spans from them."""
    endpoint = os.environ.pop(_READ_BY_VLLM, None)
    try:
        yield
    finally:
        if endpoint is not None:
            os.environ[_READ_BY_VLLM] = endpoint


_PR_SET_PDEATHSIG = 1


def bind_to_parent() -> bool:
    """Put this engine process into its own session; have the kernel kill it (SIGKILL) when its parent's thread ends.

    Returns True in an engine process. In other processes, does nothing and returns False. The kernel watches the
    *thread* that started the process, so that thread must live as long as the engine (`core/async_llm.py`).
    """
    parent = multiprocessing.parent_process()
    server = os.environ.get(BIND_TO_PARENT, "")
    if parent is None or not sys.platform.startswith("linux") or not server.isdigit() or int(server) == os.getpid():
        return False
    if os.getpgrp() != os.getpid():
        os.setsid()
    die_with_parent(parent.pid or 0)
    return True


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process (SIGKILL) when the thread of `parent` that started it ends. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        # The parent ended between the start of this process and the call above.
        os.kill(os.getpid(), signal.SIGKILL)
