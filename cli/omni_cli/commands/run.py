"""`omnipipe run`: runs a pipeline as processes on this machine, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console

from omni_cli.local.pipeline import LocalOptions, LocalPipeline, LocalRunError
from omni_cli.local.progress import make_progress
from omni_proto.pipeline import ModelPathError, OmniPipeline, order_stages, resolve_model_paths
from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage_config import STAGE_NAME_PATTERN, Modality
from omni_stage.errors import ConfigurationError
from omni_stage.models.registry import installed_families

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMAGE_CODE: Final = Path("/opt/omnipipeline")
"""Directory of the packages in the stage images (see the Dockerfile)."""


class StopRequest:
    """Set by the first stop signal. After a second signal, stages are killed without waiting for their grace period."""

    def __init__(self) -> None:
        self.requested = False

    def install(self) -> None:
        """Take over the stop signals of this process. SIGHUP stays ignored under nohup."""
        for number in STOP_SIGNALS:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def __call__(self) -> bool:
        return self.requested

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            # This process exits immediately; PR_SET_PDEATHSIG and the guard then kill the stages.
            os._exit(128 + number)
        self.requested = True


def run_pipeline(pipeline: OmniPipeline, options: LocalOptions, address_file: Path | None = None) -> int:
    """Run the pipeline until a stop signal. Returns 0 after an orderly stop, 1 if a process failed or did not start."""
    console = Console(stderr=True, soft_wrap=True)
    stop = StopRequest()
    stop.install()
    names = [stage.name for stage in order_stages(pipeline)]
    if pipeline.spec.entry.tls is not None and options.tls_dir is None:
        console.print(
            "spec.entry.tls names a Secret of a cluster, so this run serves plaintext; for TLS, give --tls-dir DIR",
            style="yellow",
            markup=False,
        )
    failure: LocalRunError | OSError | None = None
    with LocalPipeline(pipeline, options) as running:
        console.print(
            f"pipeline {pipeline.metadata.name}: {' -> '.join(names)}; logs in {running.log_dir}",
            highlight=False,
            markup=False,
        )
        try:
            if address_file is not None:
                check_writable(address_file)
            with make_progress(console, names) as progress:
                ready = running.start(progress, stop)
            if ready:
                _announce(running, console, address_file)
                running.watch(stop)
        except (LocalRunError, OSError) as error:
            failure = error
            console.print(f"error: {error}", style="red", highlight=False, markup=False)
        console.print("stopping; press Ctrl-C again to stop without waiting", highlight=False, markup=False)
        late = running.stop()
    if late:
        console.print(f"killed after {options.grace_s:g} s: {', '.join(late)}", style="yellow", markup=False)
    return 1 if failure else 0


def check_writable(address_file: Path) -> None:
    """Raises LocalRunError if the address file cannot be written."""
    if address_file.is_dir():
        raise LocalRunError(f"{address_file} is a directory; choose another --address-file")
    try:
        partial = _partial(address_file)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise LocalRunError(f"cannot write {address_file}: {error.strerror}; choose another --address-file") from error


def _partial(address_file: Path) -> Path:
    """Returns the path where the addresses are written before they are moved to the address file."""
    return address_file.with_name(f"{address_file.name}.partial")


def _announce(running: LocalPipeline, console: Console, address_file: Path | None) -> None:
    print(running.endpoint, flush=True)
    console.print(f"ready at {running.endpoint}; try:", highlight=False, markup=False)
    ca = str(running.options.ca or "")
    generate, curls = first_requests(running.pipeline, running.endpoint, running.http_url, ca)
    console.print(f"  {generate}", highlight=False, markup=False)
    if running.http_url:
        lines = [f"OpenAI's API at {running.http_url}/v1, and a page at {running.http_url}/; try:", *curls]
        console.print("\n  ".join(lines), highlight=False, markup=False)
    console.print("Ctrl-C stops the pipeline", highlight=False, markup=False)
    if address_file is None:
        return
    stages = {
        name: {"grpc": address.grpc, "health": address.health, "metrics": address.metrics}
        for name, address in running.addresses.items()
    }
    partial = _partial(address_file)
    addresses: dict[str, object] = {"endpoint": running.endpoint, "stages": stages}
    if running.http_url:
        addresses["http"] = running.http_url
    partial.write_text(json.dumps(addresses), encoding="utf-8")
    partial.replace(address_file)


def first_requests(pipeline: OmniPipeline, endpoint: str, http_url: str | None, ca: str = "") -> tuple[str, list[str]]:
    """Returns commands for a first request that this pipeline can answer: one for gRPC, and others for HTTP.

    ca: path of the certificate authority; empty for plaintext.
    """
    stages = order_stages(pipeline)
    outputs = {output for stage in stages for output in stage.outputs}
    facts = find_facts(stages[0].component)
    hears = facts is not None and facts.transcribes
    speaks = Modality.AUDIO in outputs
    trust = f" --ca {ca}" if ca else ""
    ask = "--audio question.wav" if hears else '--text "Hello"'
    generate = f"omnipipe generate --endpoint {endpoint}{trust} {ask}{' --out answer.wav' if speaks else ''}"
    model, curls = pipeline.metadata.name, []
    if http_url and hears:
        curls.append(f"curl {http_url}/v1/audio/transcriptions -F model={model} -F file=@question.wav")
    elif http_url and (Modality.TEXT in outputs or not speaks):
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]})
        curls.append(f"curl {http_url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'")
    reads_aloud = facts is not None and (
        facts.takes_reply or (hears and any(Modality.TEXT in stage.outputs for stage in stages[1:]))
    )
    if http_url and speaks and reads_aloud:
        body = json.dumps({"model": model, "input": "Hello"})
        curls.append(f"curl {http_url}/v1/audio/speech -H 'content-type: application/json' -d '{body}' -o hello.mp3")
    return generate, curls


def find_facts(component: str) -> ComponentFacts | None:
    """Returns the facts of an installed component; None if it is unknown, which its stage reports when it starts."""
    try:
        entry = installed_families().find(component)
    except ConfigurationError:
        return None
    return entry.facts if entry else None


def needs_vllm(pipeline: OmniPipeline) -> bool:
    """Returns whether any stage needs vLLM, because its component has no engine of its own.

    A stage with an unknown component counts as one that needs vLLM; it reports the problem when it starts.
    """
    families = installed_families()
    try:
        return not all((entry := families.find(stage.component)) and entry.engine for stage in pipeline.spec.stages)
    except ConfigurationError:
        return True


def find_models(pipeline: OmniPipeline, model_dirs: Sequence[str] = ()) -> dict[str, str]:
    """Returns the directory of each stage's checkpoint. model_dirs: the values of --model-dir.

    Raises ModelPathError if a value cannot be used, or a directory is not known or holds no checkpoint.
    """
    shared, by_stage = parse_model_dirs(model_dirs)
    resolved = resolve_model_paths(pipeline, shared, by_stage)
    paths = {name: find_model(Path(path).expanduser()).resolve() for name, path in resolved.items()}
    for name, path in paths.items():
        if not holds_checkpoint(path):
            option = "DIR" if pipeline.stage(name).model is None and name not in by_stage else f"{name}=DIR"
            raise ModelPathError(
                f"{path} holds no checkpoint (config.json is missing); give its directory with --model-dir {option}, "
                "or make a tiny one: omnipipe tiny-model DIR"
            )
    return {name: str(path) for name, path in paths.items()}


def holds_checkpoint(directory: Path) -> bool:
    """Returns whether a directory has the configuration of a model: config.json, or a Piper voice's NAME.onnx.json."""
    return (directory / "config.json").is_file() or any(directory.glob("*.onnx.json"))


def parse_model_dirs(values: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """Returns the directory that replaces spec.model, if any, and the directories by stage name.

    A value is STAGE=DIR if what precedes its first = can be the name of a stage; ./a=b is a directory. Raises
    ModelPathError if two values are for the same model.
    """
    shared: str | None = None
    by_stage: dict[str, str] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not (equals and re.fullmatch(STAGE_NAME_PATTERN, name)):
            name, path = "", value
        if not path:
            raise ModelPathError(f"--model-dir {value!r} names no directory; write [STAGE=]DIR")
        if (by_stage.get(name) if name else shared) is not None:
            raise ModelPathError(f"--model-dir gives two directories for {f'stage {name}' if name else 'spec.model'}")
        if name:
            by_stage[name] = path
        else:
            shared = path
    return shared, by_stage


def find_model(path: Path) -> Path:
    """Returns the local directory for the path of a file:// uri.

    A path inside IMAGE_CODE, which exists only in the stage images, is mapped to the installed package.
    """
    if path.exists() or not path.is_relative_to(IMAGE_CODE):
        return path
    package, *rest = path.relative_to(IMAGE_CODE).parts or ("",)
    found = find_spec(package) if package.isidentifier() else None
    if found is None or found.origin is None:
        return path
    return Path(found.origin).parent.joinpath(*rest)
