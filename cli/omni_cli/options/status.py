"""Options of `omnipipe status`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omni_cli.options.checks import fail


def status(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the OmniPipeline.")],
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace. Default: that of the kubeconfig's context.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Draw it again after each change, until Ctrl-C.")
    ] = False,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Credentials. Default: KUBECONFIG, else ~/.kube/config.")
    ] = None,
) -> None:
    """Draw a pipeline in a cluster: its conditions, and its stages as a graph with readiness and reasons.

    \b
    Examples:
      omnipipe status qwen25-omni -n models
      omnipipe status qwen25-omni --watch
    """
    from rich.console import Console

    from omni_cli.commands.status import StatusError, show_status

    try:
        show_status(name, kubeconfig, namespace, watch, Console(highlight=False))
    except StatusError as error:
        raise fail(str(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
