"""Reads an OmniPipeline from YAML or JSON text, as strictly as the API server would, and names every wrong field."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from omni_proto.errors import OmniProtoError
from omni_proto.pipeline.checks import PipelineProblems, Problem
from omni_proto.pipeline.resource import API_VERSION, KIND, OmniPipeline

MAX_PIPELINE_BYTES = 256 << 10
"""Most bytes of a pipeline file; the resource itself is at most 64 KiB."""


class PipelineError(OmniProtoError, ValueError):
    """A pipeline file is unreadable or wrong. str() has one line a problem."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, and aliases, with which a small file can grow without bound."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "aliases are not supported", self.get_mark())
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


# Dates stay text: JSON, and so the API server, has none.
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_pipeline(path: Path) -> OmniPipeline:
    """Read and validate the pipeline file at path. Raises PipelineError."""
    try:
        if path.stat().st_size > MAX_PIPELINE_BYTES:
            raise PipelineError(str(path), [Problem("file", f"is larger than {MAX_PIPELINE_BYTES} bytes")])
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PipelineError(str(path), [Problem("file", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise PipelineError(str(path), [Problem("file", "is not UTF-8 text")]) from error
    return parse_pipeline(text, source=str(path))


def parse_pipeline(text: str, *, source: str = "pipeline") -> OmniPipeline:
    """Parse and validate YAML or JSON text that holds one OmniPipeline.

    Types are taken as strictly as the API server takes them: "1" is no number, 1 is no text. A status is ignored.
    Raises PipelineError with every wrong field; rules between fields are checked once single fields are right.
    """
    document = _parse_document(text, source)
    try:
        raw = json.dumps({key: value for key, value in document.items() if key != "status"}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PipelineError(source, [Problem("file", f"holds a value that JSON cannot: {error}")]) from error
    try:
        return OmniPipeline.model_validate_json(raw, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise PipelineError(source, _list_problems(error)) from error


def _parse_document(text: str, source: str) -> dict[str, Any]:
    try:
        documents = [item for item in yaml.load_all(text, Loader=_StrictLoader) if item is not None]
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        raise PipelineError(
            source, [Problem(where, f"is not YAML: {getattr(error, 'problem', None) or error}")]
        ) from error
    if len(documents) != 1:
        raise PipelineError(source, [Problem("file", f"holds {len(documents)} YAML documents; give one {KIND}")])
    document = documents[0]
    if not isinstance(document, dict):
        raise PipelineError(source, [Problem("file", f"must hold one {KIND}, found a {type(document).__name__}")])
    return document


def _list_problems(error: ValidationError) -> list[Problem]:
    problems: list[Problem] = []
    for item in error.errors(include_url=False):
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, PipelineProblems):
            problems += cause.problems
            continue
        path = _format_path(item["loc"])
        problem = Problem(path, _explain(item["type"], item["msg"], path, item["input"]))
        # A union reports each of its branches; the hint for its path is the same.
        if problem not in problems:
            problems.append(problem)
    return problems


def _format_path(loc: tuple[str | int, ...]) -> str:
    # Branches of a union (int, constrained-str) and of a map's key appear in loc; they are no part of the file.
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part in ("int", "str", "[key]") or part.startswith("constrained-"):
            continue
        elif "/" in part or "." in part:
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path or "file"


def _explain(kind: str, message: str, path: str, value: object) -> str:
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return "unknown field" + _suggest(path)
    for pattern, hint in _HINTS:
        if re.search(pattern, path):
            return hint
    if kind == "string_type" and isinstance(value, int | float | bool):
        return f"must be text; put quotes around {json.dumps(value)}"
    if kind == "string_pattern_mismatch" and (found := _PATTERN_HINTS.get(path.rsplit(".", 1)[-1])):
        return found
    return message[:1].lower() + message[1:]


_HINTS = (
    (r"^apiVersion$", f"must be {API_VERSION}"),
    (r"^kind$", f"must be {KIND}"),
    (r"resources\.(limits|requests)\b.", "must be a quantity such as 2, 500m or 16Gi"),
    (r"rollout\.max(Surge|Unavailable)$", "must be a number up to 64 or a percentage such as 25%"),
    (
        r"pod(Labels|Annotations)\[?.",
        "must be a label key such as team or example.com/team, with a short text as value",
    ),
)
_PATTERN_HINTS = {
    "uri": "must be hf://ORG/NAME, pvc://CLAIM/PATH or file:///PATH",
    "name": "must be lower-case letters and digits and begin with a letter (a pipeline's name may also hold dashes)",
    "from": "must be a stage's name: lower-case letters and digits, beginning with a letter",
    "component": "must be an id of the stage server's registry such as qwen2_5_omni/thinker, never a Python path",
    "image": "must be an image name such as registry.example/omnipipeline:0.1.0",
}


def _suggest(path: str) -> str:
    *parents, name = re.sub(r"\[[^]]*\]", "", path).split(".")
    model: type[BaseModel] | None = OmniPipeline
    for parent in parents:
        model = _model_of(model, parent) if model else None
    if model is None:
        return ""
    known = [to_camel(field.alias or key) for key, field in model.model_fields.items()]
    close = difflib.get_close_matches(to_camel(name), known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(known)}"


def _model_of(model: type[BaseModel], alias: str) -> type[BaseModel] | None:
    for name, field in model.model_fields.items():
        if alias in (field.alias, name):
            return _first_model(field.annotation)
    return None


def _first_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for item in get_args(annotation) if (found := _first_model(item))), None)
