"""`omnipipe validate`: checks every pipeline in files, offline, and reports all problems and warnings of each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from omni_proto.pipeline import API_VERSION, KIND, OmniPipeline, PipelineError, Problem, order_stages
from omni_proto.pipeline.read.load import MAX_PIPELINE_BYTES, parse_documents, read_file, to_json_types
from omni_proto.pipeline.read.offline import check_typed
from omni_proto.pipeline.rules.component_checks import list_late_edges, list_unknown_voices, list_warnings

STDIN: Final = Path("-")
_GROUP: Final = f"{API_VERSION.partition('/')[0]}/"


@dataclass
class DocumentReport:
    """What was found in one document."""

    source: str
    """The file; with the number of the document, if the file has several."""
    name: str = ""
    """Name of the pipeline; empty if it could not be read."""
    stages: list[str] = field(default_factory=list)
    """Names of its stages in the order of the graph."""
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Returns the report for -o json and -o yaml."""
        return {
            "source": self.source,
            "name": self.name,
            "valid": not self.problems,
            "stages": self.stages,
            "problems": [{"field": item.field, "message": item.message} for item in self.problems],
            "warnings": [{"field": item.field, "message": item.message} for item in self.warnings],
        }

    def write(self) -> None:
        """Print the report: problems and warnings on stderr, a line on stdout for a valid pipeline."""
        if self.problems:
            sys.stderr.write(f"{PipelineError(self.source, self.problems)}\n")
            return
        for warning in self.warnings:
            sys.stderr.write(f"warning: {self.source}: {warning}\n")
        print(f"OK: {self.name}, {len(self.stages)} stages: {' -> '.join(self.stages)}")


def validate_files(files: Sequence[Path]) -> list[DocumentReport]:
    """Returns a report for each pipeline in the files, and for each file that cannot be read; - is stdin.

    If a file has pipelines, its documents of other kinds are ignored.
    """
    return [report for path in files for report in _validate_file(path)]


def _validate_file(path: Path) -> Iterator[DocumentReport]:
    source = "stdin" if path == STDIN else str(path)
    try:
        documents = parse_documents(_read(path, source), source)
    except PipelineError as error:
        yield DocumentReport(source, problems=list(error.problems))
        return
    pipelines = [number for number, document in enumerate(documents) if _is_ours(document)]
    if not documents:
        yield DocumentReport(source, problems=[Problem("file", f"holds 0 YAML documents; give one {KIND} or more")])
    for number in pipelines or range(len(documents)):
        yield _check(documents[number], source if len(documents) == 1 else f"{source}, document {number + 1}")


def _read(path: Path, source: str) -> str:
    if path != STDIN:
        return read_file(path)
    data = sys.stdin.buffer.read(MAX_PIPELINE_BYTES + 1)
    if len(data) > MAX_PIPELINE_BYTES:
        raise PipelineError(source, [Problem("file", f"is larger than {MAX_PIPELINE_BYTES} bytes")])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PipelineError(source, [Problem("file", "is not UTF-8 text")]) from error


def _is_ours(document: Any) -> bool:
    if not isinstance(document, dict):
        return False
    return document.get("kind") == KIND or str(document.get("apiVersion", "")).startswith(_GROUP)


def _check(document: Any, source: str) -> DocumentReport:
    try:
        pipeline = check_typed(to_json_types(document, source), source)
    except PipelineError as error:
        return DocumentReport(source, problems=list(error.problems))
    stages = [stage.name for stage in order_stages(pipeline)]
    return DocumentReport(source, pipeline.metadata.name, stages, warnings=_warnings(pipeline))


def _warnings(pipeline: OmniPipeline) -> list[Problem]:
    extra = [
        Problem(f"spec.stages[{index}].extraEngineArgs", "works only where the operator's setting allows it")
        for index, stage in enumerate(pipeline.spec.stages)
        if stage.extra_engine_args
    ]
    return [*extra, *list_warnings(pipeline), *list_late_edges(pipeline), *list_unknown_voices(pipeline)]
