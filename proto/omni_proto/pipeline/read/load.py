"""Reads an OmniPipeline from YAML or JSON text into its types. YAML is read as kubectl does, and what is dangerous or
ambiguous is refused.

The types check each field, as strictly as the API server does. The types also check that the stages form a tree. All
other rules between fields are in CEL and need a CEL library: see `read/offline.py`, which the commands of `omnipipe`
use for a user's file. A stage server's image does not need that library.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from omni_proto.pipeline.problems import FieldPath, PipelineError, Problem, format_path
from omni_proto.pipeline.types.resource import KIND, OmniPipeline

MAX_DIGITS = 64
"""Maximum number of digits of a whole number. The API accepts 64 bits; Python raises ValueError above 4,300 digits."""
_PREFIX = re.compile(r"^[-+]?(?:0[bxo])?")


class StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses repeated keys, and aliases, with which a small file can expand without bound.

    Unquoted values have the same type as in kubectl, which reads YAML 1.1 with three differences: 1e9 is a number,
    12:30 is text, and dates are text, because JSON has no dates.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "aliases are not supported", self.get_mark())
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        try:
            # JSON writes some characters as two escapes, such as "\ud83d\ude00". One of them alone is refused here.
            node.value.encode("utf-16", "surrogatepass").decode("utf-16")
            return super().construct_object(node, deep)
        except (AttributeError, IndexError, ValueError) as error:
            # PyYAML converts the value of an explicit tag such as !!float without a check.
            raise _error(f"{node.value[:24]!r} is not a valid {node.tag.rpartition(':')[2]}", node) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise _error(f"key {key.value[:64]!r} is given twice", node)
                keys.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        if len(text) > MAX_DIGITS or not any(digit.isalnum() for digit in _PREFIX.sub("", text)):
            raise _error(f"{text[:24]!r} is not a whole number of at most {MAX_DIGITS} digits", node)
        return super().construct_yaml_int(node)

    def construct_boolean(self, node: yaml.ScalarNode) -> bool:
        return str(self.construct_scalar(node)).lower() in ("y", "yes", "true", "on")


def _error(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_DIGITS = "-+.0123456789"
_RESOLVERS: tuple[tuple[str, str, str], ...] = (
    ("bool", r"^(?:y|Y|n|N|(?:[Yy]es|YES|[Nn]o|NO|[Tt]rue|TRUE|[Ff]alse|FALSE|[Oo]n|ON|[Oo]ff|OFF))$", "yYnNtTfFoO"),
    ("int", r"^[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*)$", _DIGITS),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$", _DIGITS),
    ("float", r"^\.(?:nan|NaN|NAN)$", "."),
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN"),
    ("merge", r"^<<$", "<"),
)

StrictLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _starts in _RESOLVERS:
    # The empty text is null; it has no first character.
    StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), [*_starts, *([""] if _tag == "null" else [])]
    )
StrictLoader.add_constructor("tag:yaml.org,2002:bool", StrictLoader.construct_boolean)
StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.construct_integer)


MAX_PIPELINE_BYTES = 256 << 10
"""Maximum bytes of a pipeline file, including comments and whitespace."""
MAX_SPEC_BYTES = 64 << 10
"""Maximum bytes of a spec as compact JSON. The pipeline's children are many times as large, and the operator, which all
users share, keeps them in memory."""

UNKNOWN_FIELD: Final = "unknown field"
"""Message of the problem that a field is not part of the types."""
_BRANCHES: Final = ("int", "str", "[key]")


def load_pipeline(path: str | Path) -> OmniPipeline:
    """Read the pipeline file at path and check its fields. Raises PipelineError."""
    return parse_pipeline(read_file(Path(path)), source=str(path))


def parse_pipeline(text: str, *, source: str = "pipeline") -> OmniPipeline:
    """Parse YAML or JSON text that holds one OmniPipeline and check its fields.

    Types are checked as strictly as by the API server: "1" is not a number, 1 is not text. A status is ignored. Raises
    PipelineError with every wrong field.
    """
    return type_document(parse_document(text, source), source)


def read_file(path: Path) -> str:
    """Returns the text of a pipeline file. Raises PipelineError."""
    try:
        if path.stat().st_size > MAX_PIPELINE_BYTES:
            raise PipelineError(str(path), [Problem("file", f"is larger than {MAX_PIPELINE_BYTES} bytes")])
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PipelineError(str(path), [Problem("file", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise PipelineError(str(path), [Problem("file", "is not UTF-8 text")]) from error


def parse_document(text: str, source: str) -> dict[str, Any]:
    """Returns the only document of a YAML or JSON text, made of JSON types. Raises PipelineError."""
    documents = parse_documents(text, source)
    if len(documents) != 1:
        raise PipelineError(source, [Problem("file", f"holds {len(documents)} YAML documents; give one {KIND}")])
    return to_json_types(documents[0], source)


def parse_documents(text: str, source: str) -> list[Any]:
    """Returns the documents of a YAML or JSON text that are not empty, and the items of a List, which kubectl prints.

    Raises PipelineError.
    """
    try:
        found = [item for item in yaml.load_all(text, Loader=StrictLoader) if item is not None]
        return [item for document in found for item in _unpack(document)]
    except RecursionError as error:
        raise PipelineError(source, [Problem("file", "is nested too deeply")]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        raise PipelineError(
            source, [Problem(where, f"is not YAML: {getattr(error, 'problem', None) or error}")]
        ) from error


def _unpack(document: Any) -> list[Any]:
    listed = isinstance(document, dict) and (document.get("apiVersion"), document.get("kind")) == ("v1", "List")
    return document["items"] if listed and isinstance(document.get("items"), list) else [document]


def to_json_types(document: Any, source: str) -> dict[str, Any]:
    """Returns a document of YAML made of JSON types. Raises PipelineError."""
    if not isinstance(document, dict):
        raise PipelineError(source, [Problem("file", f"must hold one {KIND}, found a {type(document).__name__}")])
    if problems := list(_not_json(document, ())):
        raise PipelineError(source, problems)
    try:
        text = json.dumps(document, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PipelineError(source, [Problem("file", f"holds a value that JSON does not have: {error}")]) from error
    plain: dict[str, Any] = json.loads(text, parse_float=_number)
    return plain


def _not_json(value: Any, path: FieldPath) -> Iterator[Problem]:
    """Yields the values of a YAML document that JSON does not have, such as .nan, or !!binary."""
    if isinstance(value, float) and not math.isfinite(value):
        shown = ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
        yield Problem(format_path(path), f"must be a number, found {shown}; leave the field out for its default")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _not_json(item, (*path, str(key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _not_json(item, (*path, index))
    elif not isinstance(value, str | int | float | None):
        yield Problem(format_path(path), f"JSON has no {type(value).__name__}; write it as text, in quotes")


def _number(text: str) -> int | float:
    """Returns the number as int if it is whole: kubectl sends 1.0 and 1e3 as integers."""
    number = float(text)
    return int(number) if number.is_integer() else number


def type_document(document: Mapping[str, Any], source: str = "pipeline") -> OmniPipeline:
    """Returns the typed pipeline of a document made of JSON types, such as an object of the API server.

    Raises PipelineError with every wrong field.
    """
    check_spec_size(document.get("spec"), source)
    raw = json.dumps({key: value for key, value in document.items() if key != "status"})
    try:
        return OmniPipeline.model_validate_json(raw, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise PipelineError(source, _list_problems(error)) from error


def type_live_document(document: Mapping[str, Any], source: str = "pipeline") -> tuple[OmniPipeline, tuple[str, ...]]:
    """Returns the typed pipeline of an object that an API server accepted, and the paths of its unknown fields.

    A CRD newer than this program adds fields, most of them with a default that the API server fills in everywhere. They
    are ignored. Raises PipelineError for values that are not understood, and for what is missing.
    """
    try:
        return type_document(document, source), ()
    except PipelineError as error:
        unknown = [problem.path for problem in error.problems if problem.message == UNKNOWN_FIELD]
        if not unknown:
            raise
    known = copy.deepcopy(dict(document))
    for *parents, name in unknown:
        parent: Any = known
        for part in parents:
            parent = parent[part]
        del parent[name]
    pipeline, more = type_live_document(known, source)
    return pipeline, (*(format_path(path) for path in unknown), *more)


def check_spec_size(spec: Any, source: str) -> None:
    """Check the size of a spec. Raises PipelineError if it has more than MAX_SPEC_BYTES."""
    size = len(json.dumps(spec, separators=(",", ":"), ensure_ascii=False).encode(errors="replace"))
    if size > MAX_SPEC_BYTES:
        raise spec_too_large(size, source)


def spec_too_large(size: int, source: str) -> PipelineError:
    """Returns the error for a spec of that many bytes."""
    words = f"is {size} bytes as JSON, over the limit of {MAX_SPEC_BYTES}; shorten annotations, labels and lists"
    return PipelineError(source, [Problem("spec", words)])


def _list_problems(error: ValidationError) -> list[Problem]:
    problems: list[Problem] = []
    for item in error.errors(include_url=False):
        # pydantic's loc includes branches of a union (int, constrained-str) and "[key]", which are not in the file.
        unknown = item["type"] == "extra_forbidden"
        path = tuple(
            part
            for part in item["loc"]
            if unknown or isinstance(part, int) or not (part in _BRANCHES or part.startswith("constrained-"))
        )
        words = UNKNOWN_FIELD if unknown else {"missing": "is missing"}.get(item["type"])
        problem = Problem(format_path(path), words or item["msg"][:1].lower() + item["msg"][1:], path)
        if problem not in problems:
            problems.append(problem)
    return problems
