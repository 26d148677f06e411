"""`omnipipe generate`: sends one request to a running pipeline and shows the text as it arrives."""

from __future__ import annotations

import dataclasses
import difflib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from omni_cli.timeline import compute_timeline, render_trace
from omni_proto.client import (
    ArgumentError,
    AudioChunk,
    ChatMessage,
    ClientTls,
    GenerateArguments,
    GenerationResult,
    MediaPart,
    OmniClient,
    OmniRequestError,
    Part,
    ResultBuilder,
    StageFinished,
    TextDelta,
    TranscriptDelta,
    audio_part,
    image_part,
    video_part,
)
from omni_proto.stage_config import SamplingDefaults

_FORM = re.compile(r"^(?P<stage>[a-z][a-z0-9]*)\.(?P<key>[A-Za-z_]+)=(?P<value>.+)$", re.DOTALL)
_TEXT_LISTS = ("stop",)


class Screen:
    """A stream that shows text. Characters that its encoding does not have are written as escapes.

    If text can no longer be written, because the disk is full or the reader has gone, `error` says why. Further text is
    then dropped.
    """

    def __init__(self, stream: TextIO, *, required: bool) -> None:
        """required: raise the error too, because the text is all that the user wants."""
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        self._stream = stream
        self._required = required
        self.error: OSError | None = None

    def write(self, text: str) -> None:
        """Show the text immediately. Raises OSError if it is required and cannot be written."""
        if self.error is not None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            self.error = error
            self._discard()
            if self._required:
                raise

    def _discard(self) -> None:
        """Redirect the stream to /dev/null. Otherwise Python would try to write the rest when it exits, and fail."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)


class InputFileError(RuntimeError):
    """A file of the prompt cannot be read."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where to write the answer. None: not written."""

    out: Path | None = None
    timeline: Path | None = None
    trace: Path | None = None
    json_file: Path | None = None


def run_generate(
    endpoint: str,
    arguments: GenerateArguments,
    outputs: Outputs,
    *,
    max_tokens: int | None = None,
    tls: ClientTls | None = None,
) -> int:
    """Send the request, show and save the answer. Returns 0 on success, 1 on failure, 130 after Ctrl-C.

    `max_tokens`: of the answer. `tls`: None lets the endpoint's scheme decide.
    """
    screen = Screen(sys.stdout, required=outputs == Outputs())
    try:
        answer = ask(endpoint, arguments, screen.write, max_tokens=max_tokens, tls=tls, show_heard=_show_heard)
    except OmniRequestError as error:
        sys.stderr.write(f"\nerror: {endpoint}: {error}{_describe_error(error)}\n")
        return 1
    except ArgumentError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except OSError as error:
        return _report_hidden_text(error)
    except KeyboardInterrupt:
        sys.stderr.write("\ncancelled\n")
        return 130
    try:
        saved = save_answer(answer, outputs)
    except OSError as error:
        sys.stderr.write(f"error: cannot write {error.filename}: {error.strerror}\n")
        return 1
    for line in (*saved, *describe_cut(answer)):
        sys.stderr.write(f"{line}\n")
    return 0 if screen.error is None else _report_hidden_text(screen.error)


def _show_heard(text: str) -> None:
    sys.stderr.write(f"heard: {' '.join(text.split())}\n")


def _report_hidden_text(error: OSError) -> int:
    sys.stderr.write(f"error: cannot write the text: {error.strerror}\n")
    return 1


def read_prompt(
    text: str | None = None,
    file: Path | None = None,
    *,
    embeds: Path | None = None,
    raw: bool = False,
    system: str | None = None,
    images: Sequence[Path] = (),
    audios: Sequence[Path] = (),
    videos: Sequence[Path] = (),
) -> GenerateArguments:
    """Returns the client's argument for the prompt: embeddings, raw text, or a chat. Raises InputFileError."""
    if embeds is not None:
        return {"prompt_embeds": read_embeds(embeds)}
    text = text if file is None else _read_text(file)
    if raw:
        return {"raw_text": text or ""}
    media = [
        *(read_media(path, image_part) for path in images),
        *(read_media(path, audio_part) for path in audios),
        *(read_media(path, video_part) for path in videos),
    ]
    parts: tuple[Part, ...] = (*media, *([text] if text else []))
    if not parts:
        raise InputFileError("the prompt is empty; give a text, an image, an audio file or a video")
    messages = [ChatMessage("system", (system,))] if system else []
    return {"chat": [*messages, ChatMessage("user", parts)]}


def read_embeds(path: Path) -> Any:
    """Returns the array [rows, hidden size] of a .npy file. Raises InputFileError."""
    try:
        import numpy
    except ImportError as error:
        raise InputFileError("prompt embeddings need numpy; install omnipipeline[stage]") from error
    try:
        # Pickled objects are refused: a file must not run code.
        return numpy.ascontiguousarray(numpy.load(path, allow_pickle=False))
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {error.strerror or 'it is not a .npy file'}") from error
    except (ValueError, EOFError) as error:
        raise InputFileError(f"cannot read {path}: it is not a .npy file of numbers") from error


def ask(
    endpoint: str,
    arguments: GenerateArguments,
    show: Callable[[str], object],
    *,
    max_tokens: int | None = None,
    tls: ClientTls | None = None,
    show_heard: Callable[[str], object] = lambda text: None,
) -> GenerationResult:
    """Send the request and pass the text as it arrives to `show`. Returns the answer. An exception cancels the request.

    `show_heard` gets the transcript of the request's audio before the answer begins. If there is no answer, because
    only the transcript is requested, `show` gets it.

    Raises OmniRequestError, ArgumentError, and what show raises.
    """
    builder = ResultBuilder()
    heard, writing = "", ""
    with OmniClient(endpoint, tls=tls) as client:
        sampling = {stage: dict(values) for stage, values in (arguments.get("sampling") or {}).items()}
        if max_tokens is not None:
            entry = client.get_stage(timeout=arguments.get("timeout"))
            sampling.setdefault(entry.answering_stage or entry.stage, {}).setdefault("max_tokens", max_tokens)
        request: GenerateArguments = {**arguments, "sampling": sampling, "include_timings": True}
        for event in client.generate(**request):
            builder.add(event)
            if isinstance(event, TranscriptDelta):
                heard += event.text
            elif heard and isinstance(event, TextDelta | AudioChunk):
                show_heard(heard)
                heard = ""
            if isinstance(event, TextDelta):
                if writing and writing != event.stage:
                    show("\n")  # each stage's text begins on a line of its own
                writing = event.stage
                show(event.text)
    if writing:
        show("\n")
    elif heard:
        show(f"{heard.strip()}\n")
    return builder.result()


def save_answer(answer: GenerationResult, outputs: Outputs) -> list[str]:
    """Write the requested files. Returns one line about each. Raises OSError, which names the file."""
    lines: list[str] = []
    if outputs.out is not None and answer.audio:
        with _named(outputs.out):
            answer.write_wav(outputs.out)
        lines.append(f"{outputs.out}: {answer.audio_seconds:.2f} s of audio")
    elif outputs.out is not None:
        lines.append(f"the response holds no audio; {outputs.out} was not written")
    if outputs.trace is not None:
        timings = {stage.stage: stage.timings for stage in list_finished(answer)}
        text = render_trace(compute_timeline(timings), request_id=answer.request_id)
        with _named(outputs.trace):
            outputs.trace.write_text(text, encoding="utf-8")
        lines.append(f"{outputs.trace}: trace of the stages, for ui.perfetto.dev")
    if outputs.timeline is not None:
        from omni_cli.plots import draw_timeline

        timings = {stage.stage: stage.timings for stage in list_finished(answer)}
        with _named(outputs.timeline):
            draw_timeline(compute_timeline(timings), outputs.timeline, title=f"request {answer.request_id}")
        lines.append(f"{outputs.timeline}: timeline of the stages")
    if outputs.json_file is not None:
        with _named(outputs.json_file):
            outputs.json_file.write_text(json.dumps(describe_answer(answer), indent=2) + "\n", encoding="utf-8")
        lines.append(f"{outputs.json_file}: the response")
    return lines


def describe_cut(answer: GenerationResult) -> list[str]:
    """Returns a line for each stage whose maximum length cut the answer, with the remedy."""
    return [
        f"stage {stage} reached its maximum length, so the end of its output is missing; "
        f"for more, give --sampling {stage}.max_tokens=NUMBER or a shorter text"
        for stage in answer.cut_stages
    ]


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Adds the path to an OSError, because the error of a full disk names no file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def list_finished(answer: GenerationResult) -> list[StageFinished]:
    """Returns the StageFinished of the stages that completed, in the order of the graph."""
    order = [outcome.stage for outcome in answer.summary.stages] if answer.summary else []
    return [answer.finished[stage] for stage in order if stage in answer.finished]


def describe_answer(answer: GenerationResult) -> dict[str, Any]:
    """Returns the answer as a JSON object, without the audio samples."""
    return {
        "request_id": answer.request_id,
        "total_ns": answer.summary.total_ns if answer.summary else 0,
        "text": dict(answer.texts),
        "transcript": answer.transcript,
        "audio": {
            "sample_rate_hz": answer.sample_rate_hz,
            "channels": answer.channels,
            "encoding": answer.encoding,
            "seconds": answer.audio_seconds,
        }
        if answer.audio
        else None,
        "cut_stages": list(answer.cut_stages),
        "stages": [dataclasses.asdict(stage) for stage in list_finished(answer)],
    }


def _describe_error(error: OmniRequestError) -> str:
    notes = {
        "field": error.field,
        "limit": error.limit,
        "request": error.request_id,
        "retry after": "" if error.retry_after_s is None else f"{error.retry_after_s:g} s",
    }
    text = ", ".join(f"{name} {value}" for name, value in notes.items() if value)
    return f" ({text})" if text else ""


def _read_text(path: Path) -> str:
    is_stdin = str(path) == "-"
    if is_stdin and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # whatever the locale is
    try:
        return sys.stdin.read() if is_stdin else path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputFileError(f"cannot read {'stdin' if is_stdin else path}: it is not UTF-8 text") from error


def read_media(path: Path, read: Callable[[Path], MediaPart]) -> MediaPart:
    """Returns the part of a prompt that `read` makes of a file. Raises InputFileError."""
    try:
        return read(path)
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {error.strerror}") from error
    except ArgumentError as error:
        raise InputFileError(f"{path}: {error}") from error


class SamplingOptionError(ValueError):
    """An option does not have the form STAGE.KEY=VALUE, names no sampling parameter, is repeated, or has a wrong
    value."""


def parse_sampling(options: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the sampling parameters by stage, with the types of SamplingDefaults.

    A list is a JSON list, or comma-separated; `stop` without brackets is one string. Raises SamplingOptionError, which
    names the option and the problem.
    """
    sampling: dict[str, dict[str, Any]] = {}
    for option in options:
        match = _FORM.match(option)
        if match is None:
            raise SamplingOptionError(f"--sampling {option}: give it as STAGE.KEY=VALUE, e.g. thinker.temperature=0.7")
        stage, key, text = match["stage"], match["key"], match["value"]
        known = SamplingDefaults.model_fields
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise SamplingOptionError(f"--sampling {option}: {key} is not a sampling parameter; {hint}")
        if key in sampling.get(stage, {}):
            raise SamplingOptionError(f"--sampling {option}: {stage}.{key} is given twice")
        sampling.setdefault(stage, {})[key] = _parse_value(option, key, text)
    return sampling


def _parse_value(option: str, key: str, text: str) -> Any:
    value: object = text
    if "list" in str(SamplingDefaults.model_fields[key].annotation):
        value = _parse_list(option, text, as_text=key in _TEXT_LISTS)
    try:
        return getattr(SamplingDefaults.model_validate({key: value}, by_name=True), key)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise SamplingOptionError(f"--sampling {option}: {reason[:1].lower() + reason[1:]}") from error


def _parse_list(option: str, text: str, *, as_text: bool) -> list[Any]:
    if not text.startswith("["):
        return [text] if as_text else text.split(",")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SamplingOptionError(f"--sampling {option}: not a JSON list: {error}") from error
    if not isinstance(value, list):
        raise SamplingOptionError(f"--sampling {option}: not a JSON list")
    return value
