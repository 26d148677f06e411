"""The `omnipipe` command: its subcommands, in the order in which `--help` lists them.

Each subcommand imports what it needs when it runs, so that `--help` is quick and the client's commands need neither
an engine nor a cluster.
"""

from __future__ import annotations

from typing import Annotated

import typer

from omni_cli.options import files, gateway, generate, run, status

app = typer.Typer(
    name="omnipipe",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run.run)
app.command()(generate.generate)
app.command()(gateway.gateway)
app.command("gateway-key")(gateway.gateway_key)
app.command()(files.validate)
app.command()(files.render)
app.command()(status.status)
app.command("tiny-model")(files.tiny_model)
app.command()(run.demo)


def print_version(wanted: bool) -> None:
    """Print the installed version and end, if --version was given."""
    if wanted:
        from omnipipeline import __version__

        print(f"omnipipe {__version__}")
        raise typer.Exit


@app.callback()
def omnipipe(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Run any-to-any models as pipelines of stage servers, and send requests to them."""
