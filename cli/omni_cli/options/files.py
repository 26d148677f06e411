"""Options of the subcommands that only read or write files: `validate`, `render` and `tiny-model`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from omni_cli.options.checks import PipelineFile, fail, read_pipeline, require_engine


def validate(pipeline_file: PipelineFile) -> None:
    """Check a pipeline file, offline. Prints all problems; the exit code is 1 if there is one.

    Components that are not built in cause only a warning, because an image of your own may contain them. The command
    also warns about devices that do not count as GPUs, edges without `mode` that could stream, and aliases of voices
    that the published checkpoints lack.

    \b
    Example:
      omnipipe validate manifests/samples/qwen25-omni.yaml
    """
    from omni_proto.pipeline import order_stages
    from omni_proto.pipeline.rules.component_checks import list_late_edges, list_unknown_voices, list_warnings

    pipeline = read_pipeline(pipeline_file)
    for warning in (
        *list_warnings(pipeline),
        *list_late_edges(pipeline),
        *list_unknown_voices(pipeline),
    ):
        sys.stderr.write(f"warning: {pipeline_file}: {warning}\n")
    names = " -> ".join(stage.name for stage in order_stages(pipeline))
    print(f"OK: {pipeline.metadata.name}, {len(pipeline.spec.stages)} stages: {names}")


def render(
    pipeline_file: PipelineFile,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace. Default: the file's, else default.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Image of stages that set none. Default: the operator's default image.")
    ] = None,
    pod_monitors: Annotated[
        bool, typer.Option("--pod-monitors", help="Include PodMonitors, as in a cluster that has their API.")
    ] = False,
) -> None:
    """Print the objects that the operator makes for a pipeline, as YAML. Needs no cluster.

    \b
    Examples:
      omnipipe render manifests/samples/qwen25-omni.yaml
      omnipipe render pipeline.yaml -n models --image registry.example/stage:1.2 | kubectl diff -f -
    """
    from omni_cli.commands.render import format_manifests, render_children
    from omni_operator.desired.build_settings import DEFAULT_IMAGE, BuildSettings

    pipeline = read_pipeline(pipeline_file)
    settings = BuildSettings(default_image=image or DEFAULT_IMAGE, pod_monitors=pod_monitors)
    manifests = render_children(pipeline, namespace or pipeline.metadata.namespace or "default", settings)
    sys.stdout.write(format_manifests(manifests))


def tiny_model(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to write; created if it is missing.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    shape: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Set of layer sizes: small (default); some families also have gqa or wide."),
    ] = None,
    family: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model family. Needed if several families have a tiny model.")
    ] = None,
) -> None:
    """Write a complete checkpoint of a few megabytes with random weights, for experiments and tests.

    Its output is meaningless, but the same on every run. A directory is refused if it has files that are not from an
    earlier tiny model.

    \b
    Example:
      omnipipe tiny-model /tmp/tiny-omni --family qwen2_5_omni
    """
    require_engine()
    from omni_cli.commands.tiny_model import TinyModelError, write_tiny_model

    try:
        write_tiny_model(directory, family=family, seed=seed, shape=shape)
    except TinyModelError as error:
        raise fail(str(error)) from error
    except OSError as error:
        raise fail(f"cannot write {error.filename or directory}: {error.strerror}") from error
    print(f"wrote {directory}")
