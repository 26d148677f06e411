"""`make cluster-up` and `make cluster-down`: a Kubernetes node on this machine, with our images in it.

python -m support.cluster.command up [--bare] | down
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from support.cluster.cluster import Cluster, down
from support.cluster.node.layout import Layout
from support.cluster.node.system import UnfitMachineError, prepare
from support.controlplane.binaries import BinariesMissingError
from support.processes.build_cache import say


def main(arguments: Sequence[str]) -> int:
    """Runs one command. Returns the exit status."""
    match list(arguments):
        case ["up"]:
            return _up(images=True)
        case ["up", "--bare"]:
            return _up(images=False)
        case ["down"]:
            prepare()
            down(Layout())
            return 0
    say(__doc__ or "")
    return 2


def _up(*, images: bool) -> int:
    started = time.monotonic()
    cluster = Cluster()
    cluster.__enter__()
    say(f"node ready in {time.monotonic() - started:.0f} s")
    if images:
        cluster.images.build()
        say(f"images built after {time.monotonic() - started:.0f} s")
    kubectl, helm = cluster.binaries["kubectl"], cluster.binaries["helm"]
    say(f"kubectl: {kubectl}\nhelm: {helm}\nmake cluster-down removes it")
    sys.stdout.write(f"export KUBECONFIG={cluster.kubeconfig}\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (UnfitMachineError, BinariesMissingError) as error:
        say(str(error))
        sys.exit(1)
