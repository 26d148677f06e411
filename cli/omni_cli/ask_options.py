"""Options of `omnipipe chat` and `omnipipe bench`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from omni_cli.checks import OutputFormat, fail, print_as, require_plots, require_writable
from omni_cli.generate_options import ModalityOption
from omni_cli.target_options import (
    Ca,
    Cert,
    Context,
    Endpoint,
    Key,
    Kubeconfig,
    Namespace,
    Pipeline,
    PipelineTarget,
    ServerName,
    Tls,
)

Voice = Annotated[str, typer.Option(help="Name of the voice.")]
Modalities = Annotated[
    list[ModalityOption] | None, typer.Option("--modality", help="What to return; may be repeated. Default: all.")
]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Maximum tokens of an answer.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Deadline of a request, in seconds.")]


def chat(
    endpoint: Endpoint = None,
    pipeline: Pipeline = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    system: Annotated[str, typer.Option(help="System message.")] = "",
    voice: Voice = "",
    modality: Modalities = None,
    max_tokens: MaxTokens = None,
    play: Annotated[
        bool, typer.Option("--play/--no-play", help="Play answers with pw-play, paplay, afplay, aplay or ffplay.")
    ] = True,
    timeout: Timeout = 300.0,
    tls: Tls = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    server_name: ServerName = "",
) -> None:
    """Talk with a running pipeline, line by line; it remembers the conversation.

    /image, /audio and /video attach a file to the next message, /record sends what
    the microphone hears, /help lists all commands. Lines of a pipe are answered too.

    \b
    Examples:
      omnipipe chat --endpoint 127.0.0.1:50051
      omnipipe chat --pipeline qwen25-omni -n models
      omnipipe chat --endpoint 127.0.0.1:50051 --system "Answer in one sentence." --voice Chelsie
    """
    from omni_cli.commands.chat import HELP, find_player, find_recorder, prompt_lines, run_chat
    from omni_proto.client import GenerateArguments

    player = find_player() if play else None
    typer.echo(HELP if player else f"{HELP}(no player is used; /save writes the audio)\n", err=True, nl=False)
    arguments: GenerateArguments = {
        "voice": voice,
        "modalities": [item.value for item in modality or ()],
        "timeout": timeout,
    }
    target = PipelineTarget(endpoint, pipeline, namespace, kubeconfig, context, tls, ca, cert, key, server_name)
    with target.open() as (address, client_tls):
        status = run_chat(
            address,
            prompt_lines(),
            arguments=arguments,
            system_message=system,
            max_tokens=max_tokens,
            tls=client_tls,
            player=player,
            recorder=find_recorder(),
        )
    raise typer.Exit(status)


def bench(
    endpoint: Endpoint = None,
    pipeline: Pipeline = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    text: Annotated[str, typer.Option(help="The prompt of every request.")] = "Describe the sea.",
    requests: Annotated[int, typer.Option(min=1, max=100_000, help="Number of requests.")] = 20,
    rate: Annotated[
        float,
        typer.Option(min=0.001, help="Requests per second, at random intervals; inf sends as --concurrency allows."),
    ] = float("inf"),
    concurrency: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum requests at a time.")] = 8,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of an answer, of the stage that writes it.")
    ] = None,
    voice: Voice = "",
    modality: Modalities = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write one JSON line for each request to this file.")
    ] = None,
    aiperf: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the run in AIPerf's format into this folder.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the waits; .png, .svg or .pdf. Needs matplotlib.")
    ] = None,
    output: OutputFormat = None,
    timeout: Timeout = 300.0,
    tls: Tls = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    server_name: ServerName = "",
) -> None:
    """Send many requests to a running pipeline, and print what their listeners would have noticed.

    Times count from the moment at which a request was due, so a queue on the client's
    side counts too. Silence is what a player that begins with the first chunk has to fill.
    With --pipeline, all requests go to one pod.
    The exit code is 1 if a request failed.

    \b
    Examples:
      omnipipe bench --endpoint 127.0.0.1:50051 --requests 100 --rate 2
      omnipipe bench --endpoint 127.0.0.1:50051 --concurrency 16 -o json
      omnipipe bench --endpoint 127.0.0.1:50051 --plot run.png --aiperf run
    """
    from omni_cli.commands.bench import PROFILE, format_summary, list_waits, run_bench, write_json_lines, write_run
    from omni_proto.client import ArgumentError, GenerateArguments, OmniClient, OmniRequestError

    if plot is not None:
        require_plots("--plot", plot)
    if aiperf is not None:
        try:
            aiperf.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise fail(f"cannot write {aiperf}: {error.strerror}") from error
    require_writable(json_file, plot, aiperf and aiperf / PROFILE)
    target = PipelineTarget(endpoint, pipeline, namespace, kubeconfig, context, tls, ca, cert, key, server_name)
    arguments: GenerateArguments = {
        "text": text,
        "voice": voice,
        "modalities": [item.value for item in modality or ()],
        "timeout": timeout,
    }
    try:
        with target.open() as (address, client_tls):
            if max_tokens is not None:
                with OmniClient(address, tls=client_tls) as client:
                    stage = client.get_stage(timeout=timeout)
                arguments["sampling"] = {stage.answering_stage or stage.stage: {"max_tokens": max_tokens}}
            begun_ns = time.time_ns()
            summary, outcomes = run_bench(
                address, arguments, requests=requests, rate=rate, concurrency=concurrency, tls=client_tls
            )
    except (ArgumentError, OmniRequestError) as error:
        raise fail(f"{pipeline or endpoint}: {error}") from error
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    try:
        if json_file is not None:
            json_file.write_text(write_json_lines(outcomes), encoding="utf-8")
        if aiperf is not None:
            write_run(outcomes, aiperf, concurrency=concurrency, begun_ns=begun_ns)
        if plot is not None:
            from omni_cli.plots import draw_waits

            draw_waits(list_waits(outcomes), [one.start_s for one in outcomes if one.error], plot)
    except OSError as error:
        raise fail(f"cannot write {error.filename}: {error.strerror}") from error
    if output is None:
        print(format_summary(summary))
    else:
        print_as(output, summary)
    raise typer.Exit(int(bool(summary["errors"])))
