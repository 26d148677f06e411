"""Checks that several subcommands make before they start, and their exits if a check fails."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from omni_proto.pipeline import OmniPipeline

PipelineFile = Annotated[Path, typer.Argument(metavar="PIPELINE.yaml", help="File that holds one OmniPipeline.")]


def fail(message: str) -> typer.Exit:
    """Print an error and make the exit that goes with it."""
    sys.stderr.write(f"error: {message}\n")
    return typer.Exit(1)


def require_engine() -> None:
    """Print which extra to install and exit 1 where no engine is installed."""
    if find_spec("vllm") is None:
        raise fail("no engine is installed: pip install 'omnipipeline[cpu]' or 'omnipipeline[gpu]'")


def require_gateway() -> None:
    """Print which extra to install and exit 1 where the gateway's packages are missing."""
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "av")):
        raise fail("the gateway's packages are not installed: pip install 'omnipipeline[gateway]'")


def read_pipeline(path: Path) -> OmniPipeline:
    """The pipeline in the file. Prints every problem and exits 1 if there is one."""
    from omni_proto.pipeline import PipelineError
    from omni_proto.pipeline.read.offline import load_checked

    try:
        return load_checked(path)
    except PipelineError as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(1) from error
