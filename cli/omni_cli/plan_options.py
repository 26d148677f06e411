"""Options of `omnipipe plan`."""

from __future__ import annotations

from typing import Annotated

import typer

from omni_cli.checks import OutputFormat, PipelineFile, fail, print_as, read_pipeline


def plan(
    pipeline_file: PipelineFile,
    rate: Annotated[float, typer.Option(min=0.001, max=1e6, help="Requests a second.")],
    speech: Annotated[str, typer.Option(metavar="DURATION", help="Speech in an answer, such as 10s.")],
    objective: Annotated[
        list[str] | None,
        typer.Option(metavar="first-audio=DURATION", help="What to keep. Default: spec.objectives."),
    ] = None,
    percentile: Annotated[
        float | None, typer.Option(min=50, max=99.9, help="Percentage of answers for which it holds. Default: 95.")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Tokens of a prompt.")] = 50,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|DIR",
            help="Table of step times (docs/load-tests.md). Default: that of the file's paced engines.",
        ),
    ] = None,
    output: OutputFormat = None,
) -> None:
    """Say how many pods of each stage a request rate needs, for speech without gaps whose first audio comes in time.

    It computes with a table of step times, and needs neither a GPU nor a cluster. The pods' queues and networks
    cost nothing in it, so keep a margin. The pipeline has a thinker, a talker and a decoder (docs/sizing.md).

    \b
    Examples:
      omnipipe plan manifests/samples/sim-omni.yaml --rate 20 --speech 10s --objective first-audio=300ms
      omnipipe plan qwen25-omni.yaml --table qwen2.5-omni-7b-h100 --rate 5 --speech 20s -o json
    """
    from omni_cli.commands.plan import PlanError, make_plan, parse_duration, read_promise
    from omni_stage.models.sim.capacity import Work

    pipeline = read_pipeline(pipeline_file)
    try:
        promise = read_promise(objective or (), percentile, pipeline)
        found = make_plan(pipeline, Work(rate, parse_duration(speech), prompt_tokens), promise, table)
    except PlanError as error:
        raise fail(str(error)) from error
    if output is None:
        print(found.write())
    else:
        print_as(output, found.to_json())
