"""What several subcommands share: checks before they start, exits if a check fails, output for programs."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from omni_proto.pipeline import OmniPipeline

OutputFormat = Annotated[
    Literal["json", "yaml"] | None, typer.Option("--output", "-o", help="Print for programs: json or yaml.")
]
PipelineFile = Annotated[Path, typer.Argument(metavar="PIPELINE.yaml", help="File that holds one OmniPipeline.")]


def fail(message: str) -> typer.Exit:
    """Print an error. Returns the exception that ends the command with exit code 1."""
    sys.stderr.write(f"error: {message}\n")
    return typer.Exit(1)


def print_as(output: Literal["json", "yaml"], value: Any) -> None:
    """Print a value made of JSON types on stdout."""
    if output == "json":
        print(json.dumps(value, indent=2, ensure_ascii=False))
        return
    import yaml

    print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), end="")


def require_writable(*paths: Path | None) -> None:
    """If a file could not be written when the work is done, print why, and exit with code 1."""
    for path in paths:
        if path is None:
            continue
        problem = ""
        try:
            if path.is_dir():
                problem = "it is a folder"
            elif not path.parent.is_dir():
                problem = f"there is no folder {path.parent}; make it first"
            elif not os.access(path if path.exists() else path.parent, os.W_OK):
                problem = "permission denied"
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            raise fail(f"cannot write {path}: {problem}")


def require_plots(option: str, path: Path) -> None:
    """If no picture can be drawn into a file, print why, and exit with code 1. Raises ModuleNotFoundError."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise fail(f"{option} {path}: the name must end with .png, .svg or .pdf")
    import omni_cli.plots  # noqa: F401 - a run whose picture cannot be drawn is lost


def require_engine() -> None:
    """If no engine is installed, print which extra to install, and exit with code 1."""
    if find_spec("vllm") is None:
        raise fail("no engine is installed: pip install 'omnipipeline[cpu]' or 'omnipipeline[gpu]'")


def require_gateway() -> None:
    """If the gateway's packages are missing, print which extra to install, and exit with code 1."""
    if any(find_spec(name) is None for name in ("omni_gateway", "fastapi", "uvicorn", "av")):
        raise fail("the gateway's packages are not installed: pip install 'omnipipeline[gateway]'")


def read_pipeline(path: Path) -> OmniPipeline:
    """Returns the pipeline in the file. If the file has problems, prints all of them and exits with code 1."""
    from omni_proto.pipeline import PipelineError
    from omni_proto.pipeline.read.offline import load_checked

    try:
        return load_checked(path)
    except PipelineError as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(1) from error
