"""`python -m omni_operator`: runs until SIGTERM or SIGINT.

Exit codes: 0 stopped, 70 internal error, 75 the CRD was deleted, 78 wrong settings or unreadable credentials.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

import uvloop

from omni_kube.api.transport import load_connection
from omni_kube.errors import CredentialsError
from omni_operator.controller import Controller
from omni_operator.kinds import FIELD_MANAGER
from omni_operator.process.kopf import ResourceGoneError
from omni_operator.process.pipeline_log import configure_operator_logging
from omni_operator.process.settings import OperatorSettings, OperatorSettingsError, parse_settings

EXIT_STOPPED: Final = 0
EXIT_INTERNAL: Final = 70
EXIT_GONE: Final = 75
EXIT_SETTINGS: Final = 78

GC_THRESHOLDS: Final = (10_000, 20, 20)
"""Arguments of gc.set_threshold. The first is the net number of allocations after which generation 0 is collected. The
others say after how many collections of one generation the next generation is collected. Python 3.11 uses 700, 10, 10.
"""

_log = logging.getLogger("omni_operator")


async def run_operator(settings: OperatorSettings) -> int:
    """Run one operator process. Returns its exit code. Raises OperatorSettingsError and CredentialsError."""
    connection = await load_connection(settings.kubeconfig, FIELD_MANAGER)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    controller = Controller(settings, connection)
    controller.failed.add_done_callback(lambda _: stop.set())
    try:
        if await _start(controller, stop):
            _log.info("serving %s", ", ".join(settings.namespaces) or "all namespaces")
            await controller.run(stop)
    finally:
        await controller.stop()
    if controller.failed.done():
        _log.critical("internal error", exc_info=controller.failed.result())
        return EXIT_INTERNAL
    return EXIT_STOPPED


async def _start(controller: Controller, stop: asyncio.Event) -> bool:
    """Start the controller. Returns False if the process is asked to stop before the start is complete."""
    starting = asyncio.ensure_future(controller.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return False
    starting.result()
    return True


def spare_collections() -> None:
    """Make the garbage collector run less often, and never over the objects that exist now (the imported modules).

    Each event creates hundreds of objects that live only until the event is handled, and almost none is in a reference
    cycle. With Python's default thresholds the start of a pipeline took a sixth more CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator from the command line. Returns the exit code."""
    try:
        settings = parse_settings(sys.argv[1:] if arguments is None else arguments, os.environ)
        configure_operator_logging(settings.log_format, settings.log_level)
        spare_collections()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run_operator(settings))
    except (OperatorSettingsError, CredentialsError) as error:
        sys.stderr.write(f"omni_operator: {error}\n")
        return EXIT_SETTINGS
    except ResourceGoneError as error:
        _log.warning("%s", error)
        return EXIT_GONE
    except Exception:  # noqa: BLE001 - the last resort: the exit code reports it
        _log.critical("internal error", exc_info=True)
        return EXIT_INTERNAL


if __name__ == "__main__":
    sys.exit(main())
