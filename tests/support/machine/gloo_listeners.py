"""Opens a process group as an engine does, and prints the addresses that the process then listens on, one a line."""

from __future__ import annotations

import os
import sys
import tempfile

from omni_stage.vllm_adapter.process.env import apply_environment
from support.machine.sockets import list_listeners


def main() -> None:
    """With the argument `plain`, does not apply the engines' environment variables."""
    if "plain" not in sys.argv:
        apply_environment()
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", world_size=1, rank=0)
        print("\n".join(sorted({one.address for one in list_listeners([os.getpid()])})))  # noqa: T201 - read by the test
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
