"""Options of the commands that look at a cluster: list, logs, top and doctor; and of `omnipipe init`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from omni_cli.checks import OutputFormat, fail, print_as, require_writable
from omni_cli.target_options import Context, Kubeconfig, Namespace

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@contextmanager
def _failing() -> Iterator[None]:
    """Exits with code 1 if the cluster refuses, and with 130 after Ctrl-C."""
    from omni_cli.cluster.access import ClusterError

    try:
        yield
    except ClusterError as error:
        raise fail(str(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def list_pipelines(
    namespace: Namespace = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    output: OutputFormat = None,
) -> None:
    """List the pipelines of a namespace in a cluster: readiness, reason, stages and where clients connect.

    \b
    Examples:
      omnipipe list -A
      omnipipe list -n models -o json
    """
    from rich.console import Console

    from omni_cli.cluster.access import connect
    from omni_cli.commands.status import draw_list

    with _failing():
        found = connect(kubeconfig, namespace, context).pipelines(everywhere=all_namespaces)
    if output is not None:
        print_as(output, {"apiVersion": "v1", "kind": "List", "items": found})
    elif found:
        Console(highlight=False).print(draw_list(found))
    else:
        sys.stderr.write("no pipelines\n")


def logs(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[STAGE|REQUEST]", help="A stage, or the id of a request. Default: all lines."),
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option("--pipeline", metavar="NAME", help="Only of this pipeline. Default: of the namespace.")
    ] = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Read the logs of omnipipe run --log-dir, instead of a cluster's."),
    ] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="How far back, such as 90s, 10m, 2h or 1d.")] = "1h",
    tail: Annotated[int | None, typer.Option(min=1, help="Only the last lines of each pod.")] = None,
    output: OutputFormat = None,
) -> None:
    """Print the lines of a stage, or of one request through the gateway and all stages, in the order of time.

    A request's id is x-request-id of the gateway's answer, and part of every error. The
    times are those of the pods' nodes. The exit code is 1 if no line is found.

    \b
    Examples:
      omnipipe logs talker --pipeline qwen25-omni --since 10m
      omnipipe logs 4f1c9a0e7d2b
      omnipipe logs 4f1c9a0e7d2b --log-dir logs
    """
    from omni_cli.cluster.access import connect
    from omni_cli.commands import logs as command

    match = re.fullmatch(r"([1-9]\d{0,7})([smhd])", since)
    if match is None:
        raise typer.BadParameter(
            f"{since!r} is no time; give a number and s, m, h or d, such as 10m", param_hint="--since"
        )
    seconds = int(match[1]) * _UNITS_S[match[2]]
    with _failing():
        try:
            if log_dir is not None:
                found = command.local_logs(log_dir)
            else:
                found = command.pod_logs(connect(kubeconfig, namespace, context), pipeline, since_s=seconds, tail=tail)
            entries = command.select(found, target)
            if output is not None:
                shown = [entry.to_json() for entry in entries]
                print_as(output, shown)
            else:
                shown = []
                width = max(len(source.stage) for source in found)
                for entry in entries:
                    shown = [{}]
                    print(command.format_entry(entry, width), flush=True)
        except command.LogsError as error:
            raise fail(str(error)) from error
        except OSError as error:
            raise fail(f"cannot read {error.filename}: {error.strerror}") from error
    if not shown:
        raise fail(f"no line of {target or 'the stages'}; --since reaches further back")


def top(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of the OmniPipeline.")] = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    address_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of omnipipe run --address-file, for a local run.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds over which rates are measured.")] = 2.0,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Draw it again after each interval, until Ctrl-C.")
    ] = False,
    output: OutputFormat = None,
) -> None:
    """Show what each pod of a pipeline does: requests that run and wait, KV cache, tokens and audio a second.

    Reads the metrics that the stages export, in a cluster through the API server.

    \b
    Examples:
      omnipipe top qwen25-omni -n models --watch
      omnipipe top --address-file address.json -o json
    """
    from itertools import islice

    from rich.console import Console
    from rich.live import Live

    from omni_cli.cluster.access import connect
    from omni_cli.commands import top as command

    if (name is None) == (address_file is None):
        raise typer.BadParameter("give the name of a pipeline, or --address-file for a local run", param_hint="NAME")
    if watch and output is not None:
        raise typer.BadParameter("the rows are printed once; leave --watch or --output out", param_hint="--watch")
    console = Console(highlight=False)
    with _failing():
        try:
            if address_file is not None:
                local = command.local_pods(address_file)
                found = command.rows(lambda: local, interval)
            else:
                cluster, wanted = connect(kubeconfig, namespace, context), name or ""
                found = command.rows(lambda: command.cluster_pods(cluster, wanted), interval)
            if output is not None:
                print_as(output, command.to_json(next(found)))
            elif watch and console.is_terminal:
                with Live(console=console, auto_refresh=False) as live:
                    for rows in found:
                        live.update(command.draw(rows), refresh=True)
            else:
                for rows in found if watch else islice(found, 1):
                    console.print(command.draw(rows))
        except command.TopError as error:
            raise fail(str(error)) from error


def doctor(
    namespace: Namespace = None, kubeconfig: Kubeconfig = None, context: Context = None, output: OutputFormat = None
) -> None:
    """Check a cluster and a namespace: what will fail, and what to do. Changes nothing.

    Versions of Kubernetes, CRDs and operator, your rights, GPUs and taints, Pod Security
    and quotas (by a dry run), network policies, storage classes, optional APIs. Exit
    codes: 0 nothing will fail, 1 something will.

    \b
    Examples:
      omnipipe doctor -n models
      omnipipe doctor -o json
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from omni_cli.cluster.access import connect
    from omni_cli.cluster.facts import gather
    from omni_cli.commands.doctor import MARKS, judge, to_json
    from omnipipeline import __version__

    with _failing():
        findings = judge(gather(connect(kubeconfig, namespace, context)), __version__)
    if output is not None:
        print_as(output, to_json(findings))
    else:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for one in findings:
            mark, style = MARKS[one.level]
            text = Text(one.text, style if one.level != "ok" else "")
            if one.remedy and one.level != "ok":
                text.append(f"\n{one.remedy}", "dim")
            table.add_row(Text(mark, style), one.check, text)
        Console(highlight=False).print(table)
    raise typer.Exit(int(any(one.level == "error" for one in findings)))


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")] = "omni",
    model: Annotated[
        str | None, typer.Option(metavar="ORG/NAME", help="Model on the hub, or a pvc:// or file:// uri.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, max=64, help="GPUs of the pipeline. Default: 1.")] = None,
    image: Annotated[
        str | None, typer.Option(help="Image of the stages. Default: the operator's default image, which is for GPUs.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write. Default: stdout.")] = None,
) -> None:
    """Write a pipeline for a model and a number of GPUs. Asks for them if --model is left out. Works offline.

    GPU memory is divided as docs/gpu-sizing.md calculates it. The result passes omnipipe validate.

    \b
    Examples:
      omnipipe init my-omni --out my-omni.yaml
      omnipipe init my-omni --model Qwen/Qwen2.5-Omni-7B --gpus 3 | kubectl apply -f -
    """
    from omni_cli.commands.init import InitError, ask, choose, write_pipeline

    def prompt(question: str, default: str) -> str:
        return str(typer.prompt(question, default=default, err=True))

    if out is not None and out.exists():
        raise fail(f"cannot write {out}: it exists; remove it, or give another file")
    require_writable(out)
    try:
        if model is None:
            model, gpus = ask(prompt, lambda line: typer.echo(line, err=True))
        text = write_pipeline(choose(model, 1 if gpus is None else gpus), name, image)
    except InitError as error:
        raise fail(str(error)) from error
    if out is None:
        sys.stdout.write(text)
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise fail(f"cannot write {out}: {error.strerror}") from error
    sys.stderr.write(f"wrote {out}\n")
