"""`python -m omni_stage serve|fetch`: runs a stage server, or downloads a checkpoint."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from omni_proto.pod_contract import ExitCode, TerminationReason
from omni_proto.runtime.logs import adopt_logger
from omni_proto.runtime.process import prefer_event_loop
from omni_proto.stage_config import StageConfig, StageConfigError, load_stage_config
from omni_stage.errors import ConfigurationError
from omni_stage.process.compile_cache import open_compile_cache
from omni_stage.process.stage_log import configure_stage_logging
from omni_stage.process.startup import require_upb
from omni_stage.process.termination import report_start_failure, write_termination

if TYPE_CHECKING:
    from omni_stage.engine.protocol import StageEngine

_log = logging.getLogger("omni_stage")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns its ExitCode: 0 success, 1 failure, 70 engine dead, 78 bad configuration, 143 aborted."""
    args = _parser().parse_args(argv)
    if args.command == "fetch":
        # The kernel delivers SIGTERM to process 1 of a container only if that process has a handler. Without this one,
        # the download would continue until SIGKILL. The handler does not wait for threads that download: the next run
        # resumes their files.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(ExitCode.ABORTED))
        from omni_stage.fetch.checkpoint import FetchRequest, run_fetch, tame_hub_logs

        configure_stage_logging("fetch", args.log_format)
        tame_hub_logs()
        request = FetchRequest(args.uri, args.revision, args.dest, args.component, args.commit_file)
        return int(run_fetch(request, args.token_file))
    return int(_serve(args.config, args.address_file, args.log_format))


def _serve(config_file: Path, address_file: Path | None, log_format: str) -> ExitCode:
    configure_stage_logging("-", "json" if log_format == "json" else "text")
    try:
        config = load_stage_config(config_file)
    except StageConfigError as error:
        _log.critical("the stage cannot start: %s", error)
        write_termination(TerminationReason.INVALID_CONFIGURATION, str(error))
        return ExitCode.BAD_CONFIGURATION
    configure_stage_logging(config.stage, "json" if log_format == "json" else "text")
    from omni_stage.vllm_adapter.checks.model_infos import copy_model_infos
    from omni_stage.vllm_adapter.process.env import apply_environment

    # NumPy reads the environment when it is imported, and the registry imports NumPy. Hence the late imports.
    apply_environment()
    from omni_stage.engine.factory import check_known_component, needs_vllm
    from omni_stage.process.startup import check_ports

    try:
        # Checked before vLLM is imported, because the import takes seconds.
        require_upb()
        check_known_component(config)
        check_ports(config.listen)
    except ConfigurationError as error:
        return report_start_failure(error)
    compiled = open_compile_cache(config) if needs_vllm(config) else None
    if compiled is not None:
        compiled.restore()
    if needs_vllm(config):
        copy_model_infos()
        # The health port's gRPC runs before the engine starts, and gRPC does not survive a fork.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        _preload()
    from omni_stage.process.startup import tune_malloc
    from omni_stage.service.server.stage_server import run_stage

    tune_malloc()
    prefer_event_loop()
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_stage(config, _build_engine, address_file, compiled))


def _preload() -> None:
    """Import vLLM while this process has one thread. If possible, fork a template process after that.

    The engine's process is then forked from that template (vllm_adapter/process/template.py).
    """
    # SIGTERM during the import ends the process immediately, with the exit code of a drained stage.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.DRAINED))
    with _lasting_objects():
        from omni_stage.vllm_adapter.process.template import start_template

        start_template()
    adopt_logger("vllm")


def _build_engine(config: StageConfig) -> StageEngine:
    with _lasting_objects():
        from omni_stage.engine.factory import build_stage_engine

        return build_stage_engine(config)


@contextmanager
def _lasting_objects() -> Iterator[None]:
    """Collect no garbage within the context, and exempt all objects that exist at its end from later collections.

    torch, transformers and vLLM create a million objects that live as long as the process. Scanning them repeatedly
    takes a seventh of the import time, and every later full collection would block the event loop while it scans them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m omni_stage", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="run a stage server")
    serve.add_argument("--config", type=Path, required=True, help="the stage file (StageConfig)")
    serve.add_argument("--address-file", type=Path, help="where to write the ports as JSON once ready")
    fetch = commands.add_parser("fetch", help="download a checkpoint")
    fetch.add_argument("--uri", required=True, help="hf://, s3://, gs://, az:// or oci:// uri")
    fetch.add_argument("--revision", default="main", help="branch, tag or commit of an hf:// repository")
    fetch.add_argument("--dest", type=Path, required=True, help="directory of the checkpoint")
    fetch.add_argument("--component", default="", help="fetch only the weights that this component reads")
    fetch.add_argument("--commit-file", type=Path, help="file that records the commit that the revision first named")
    fetch.add_argument("--token-file", type=Path, help="file that holds the token or other credentials")
    for command in (serve, fetch):
        command.add_argument("--log-format", choices=("json", "text"), default="text")
    return parser


if __name__ == "__main__":
    sys.exit(main())
