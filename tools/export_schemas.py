"""Writes the CRD, the pages and the stage file's schema in docs/reference, and the built-in components' facts.

The CRD and its reference page are made from the file of facts that was read when this process started. So if the facts
are stale, this process writes them alone, and then starts itself again. `--check` writes nothing and fails if a file is
stale.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer
import yaml
from tools.json_text import format_json
from typer.cli import get_docs_for_click

from omni_cli.main import app
from omni_proto.pipeline.components import describe_components
from omni_proto.pipeline.rules.all_rules import RULES, TEXT_RULES
from omni_proto.pipeline.rules.graph import OBJECT_RULES
from omni_proto.pipeline.rules.rule import Rule
from omni_proto.pipeline.schema import Schema, exact_bound, map_values, object_schema, resolve, structural_schema, whole
from omni_proto.pipeline.types.forms import FORMS
from omni_proto.pipeline.types.resource import API_VERSION, KIND, NAME_PATTERN, PipelineSpec
from omni_proto.pipeline.types.scaling import STAGE_KIND, OmniStage
from omni_proto.pipeline.types.status import PipelineStatus
from omni_proto.stage_config import StageConfig
from omni_stage.models.registry import built_in_facts

ROOT = Path(__file__).resolve().parent.parent

GROUP, VERSION = API_VERSION.split("/")
PLURAL = "omnipipelines"
SHORT_NAME = "omni"

COLUMNS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "Ready",
        "type": "string",
        "description": "Whether clients can connect and are served.",
        "jsonPath": '.status.conditions[?(@.type=="Ready")].status',
    },
    {
        "name": "Reason",
        "type": "string",
        "description": "Why the pipeline is ready or not.",
        "jsonPath": '.status.conditions[?(@.type=="Ready")].reason',
    },
    {
        "name": "Stages",
        "type": "string",
        "description": "Number of ready stages, out of all stages.",
        "jsonPath": ".status.readyStages",
    },
    {
        "name": "URL",
        "type": "string",
        "description": "Where clients inside the cluster connect.",
        "jsonPath": ".status.url",
    },
    {
        "name": "Model",
        "type": "string",
        "description": "The checkpoint of the stages without a model of their own.",
        "jsonPath": ".spec.model.uri",
        "priority": 1,
    },
    {
        "name": "Suspended",
        "type": "boolean",
        "description": "Whether the pipeline is suspended and runs no pods.",
        "jsonPath": ".spec.suspend",
        "priority": 1,
    },
    {
        "name": "Age",
        "type": "date",
        "description": "Time since the pipeline was created.",
        "jsonPath": ".metadata.creationTimestamp",
    },
)
"""Columns of `kubectl get omni`; those with priority 1 appear only with -o wide."""


STAGE_COLUMNS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "Desired",
        "type": "integer",
        "description": "Number of pods that the stage shall have.",
        "jsonPath": ".spec.replicas",
    },
    {
        "name": "Current",
        "type": "integer",
        "description": "Number of pods that it has.",
        "jsonPath": ".status.replicas",
    },
    {
        "name": "Ready",
        "type": "integer",
        "description": "Number of pods that accept requests.",
        "jsonPath": ".status.readyReplicas",
    },
    COLUMNS[-1] | {"description": "Time since the scale target was made."},
)
"""Columns of `kubectl get omnistages`."""


def build_crd() -> dict[str, Any]:
    """Returns the CustomResourceDefinition of OmniPipeline."""
    names = {"kind": KIND, "plural": PLURAL, "shortNames": [SHORT_NAME], "categories": ["all"]}
    return _build_crd(names, {"status": {}}, COLUMNS, object_schema())


def build_stage_crd() -> dict[str, Any]:
    """Returns the CustomResourceDefinition of OmniStage, whose subresource `scale` autoscalers use."""
    schema = structural_schema(OmniStage)
    metadata = {
        name: {"type": kind} for name, kind in (("apiVersion", "string"), ("kind", "string"), ("metadata", "object"))
    }
    schema["properties"] = {**metadata, **schema["properties"]}
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return _build_crd(
        {"kind": STAGE_KIND, "plural": "omnistages"}, {"status": {}, "scale": scale}, STAGE_COLUMNS, schema
    )


def _build_crd(
    names: dict[str, Any], subresources: dict[str, Any], columns: tuple[dict[str, Any], ...], schema: Schema
) -> dict[str, Any]:
    kind = names["kind"]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": names["plural"],
                "singular": kind.lower(),
                **{name: names[name] for name in ("shortNames", "categories") if name in names},
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": [dict(column) for column in columns],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def render_crd() -> str:
    """Returns the manifest of OmniPipeline's CRD, as YAML text."""
    return _render(build_crd())


def render_stage_crd() -> str:
    """Returns the manifest of OmniStage's CRD, as YAML text."""
    return _render(build_stage_crd())


def _render(crd: dict[str, Any]) -> str:
    header = "# Generated from proto/omni_proto/pipeline by `make schemas`; do not edit.\n"
    return header + yaml.dump(
        crd, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True, default_flow_style=None
    )


_INTRO: Final = f"""# {KIND}

<!-- Generated from proto/omni_proto/pipeline by `make schemas`; do not edit. -->

`{API_VERSION}`, kind `{KIND}`, short name `{SHORT_NAME}`, namespaced, with a status subresource.
[pipelines.md](../pipelines.md) explains the resource by examples; `kubectl explain {SHORT_NAME}.spec.stages` shows the
same descriptions as this page.

The API server checks the rules listed under "Rules", in CEL; `omnipipe validate` checks them without a server. A field
that is not listed here is refused. No field is immutable.
"""


def render_reference() -> str:
    """Returns the reference page, as Markdown."""
    lines = [_INTRO, "## Name", "", "The name of a pipeline, `metadata.name`, is checked too.", ""]
    lines += [*_rules((*TEXT_RULES[NAME_PATTERN], *OBJECT_RULES)), ""]
    columns = sorted(COLUMNS, key=lambda column: column.get("priority", 0))
    wide = " and ".join(column["name"] for column in columns if column.get("priority"))
    lines += ["## Columns", "", f"`kubectl get omni` shows these columns, but {wide} only with `-o wide`.", ""]
    lines += ["| column | what |", "|---|---|"]
    lines += [f"| {column['name']} | {column['description']} |" for column in columns]
    seen: set[str] = set()
    for title, root in (("spec", PipelineSpec), ("status", PipelineStatus)):
        lines += ["", f"## {title}"]
        whole = root.model_json_schema(by_alias=True)
        definitions = {**whole.pop("$defs", {}), root.__name__: whole}
        for name in _in_order(root.__name__, definitions):
            if name not in seen:
                lines += ["", *_section(name, definitions)]
            seen.add(name)
    return "\n".join(lines) + "\n"


def _in_order(root: str, definitions: Mapping[str, Schema]) -> Iterator[str]:
    """Yields the names of the object types below a type, each after the first type that uses it."""
    yield root
    for child in definitions[root].get("properties", {}).values():
        for ref in _refs(child):
            if "properties" in definitions[ref]:
                yield from _in_order(ref, definitions)


def _refs(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if "$ref" in node:
            yield node["$ref"].rsplit("/", 1)[1]
        for value in node.values():
            yield from _refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from _refs(value)


def _section(name: str, definitions: Mapping[str, Schema]) -> Iterator[str]:
    schema = definitions[name]
    yield f"### {name}"
    yield ""
    yield _one_line(schema.get("description", ""))
    yield ""
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    required = schema.get("required", [])
    shared = definitions[_INHERITS[name]]["properties"] if name in _INHERITS else {}
    own = [(field, node) for field, node in schema["properties"].items() if field not in shared]
    for field, node in sorted(own, key=lambda item: item[0] not in required):
        flat = resolve(node, lambda ref: definitions[ref.rsplit("/", 1)[1]])
        default = "required" if field in required else _default(flat)
        yield f"| `{field}` | {_type(node, definitions)} | {default} | {_one_line(flat.get('description', ''))} |"
    if shared:
        yield ""
        yield f"It also has all fields of [{_INHERITS[name]}](#{_INHERITS[name].lower()})."
    inherited = _RULES_BY_NAME.get(_INHERITS.get(name, ""), ())
    if rules := tuple(rule for rule in _RULES_BY_NAME.get(name, ()) if rule not in inherited):
        yield ""
        yield from _rules(rules)


def _rules(rules: tuple[Rule, ...]) -> Iterator[str]:
    yield "Rules:"
    yield ""
    for rule in rules:
        yield f"- {rule.summary}"


_RULES_BY_NAME: Final = {owner.__name__: rules for owner, rules in RULES.items()}
_INHERITS: Final = {"Stage": "PodSettings"}


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _default(node: Schema) -> str:
    default = whole(node.get("default"))
    return "" if default is None or isinstance(default, dict) else f"`{json.dumps(default).strip(chr(34))}`"


def _type(node: Schema, definitions: Mapping[str, Schema]) -> str:
    """Returns the type in words, with a link if the page has a section for it."""
    for choice in (node, *node.get("anyOf", ())):
        name = choice.get("$ref", "").rsplit("/", 1)[-1]
        if name and "properties" in definitions[name]:
            return f"[{name}](#{name.lower()})"
    flat = resolve(node, lambda ref: definitions[ref.rsplit("/", 1)[1]])
    if "enum" in flat:
        return " or ".join(f"`{value}`" for value in flat["enum"])
    if "anyOf" in flat:
        return " or ".join(_type(choice, definitions) for choice in flat["anyOf"] if choice != {"type": "null"})
    if flat.get("type") == "array":
        return f"list of {_type(flat['items'], definitions)}{_range(flat, 'Items', 'item')}"
    if flat.get("type") == "object":
        return f"map to {_type(map_values(flat) or {}, definitions)}{_range(flat, 'Properties', 'key')}"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
    words |= {"string": FORMS.get(flat.get("pattern", ""), "text")}
    return words[flat["type"]] + _bounds(flat) + _range(flat, "Length", "character")


def _bounds(node: Schema) -> str:
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    found = [f"{word} {exact_bound(node[name])}" for name, word in words.items() if name in node]
    found += [f"in steps of {node['multipleOf']}"] if "multipleOf" in node else []
    return f", {' '.join(found)}" if found else ""


def _range(node: Schema, what: str, unit: str) -> str:
    low, high = node.get(f"min{what}", 0), node.get(f"max{what}")
    if high is None:
        return ""
    return f", {f'{low} to' if low else 'at most'} {high} {unit}{'s' if high > 1 else ''}"


def render_stage_config_schema() -> str:
    """Returns the JSON schema (draft 2020-12) of the stage file."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **StageConfig.model_json_schema(by_alias=True),
    }
    return format_json(schema)


def render_component_facts() -> str:
    """Returns the text of components.json: the facts of the built-in components, from their families' manifests."""
    return format_json(describe_components(built_in_facts()))


_CLI_NOTE: Final = """<!-- Generated from cli/omni_cli by `make schemas`; do not edit. -->

As `kubectl omni`, it is a plugin of kubectl ([client.md](../client.md#the-command-line))."""
_EXAMPLES: Final = re.compile(r"\x08\n(?P<title>Examples?:)\n(?P<lines>( {2,}\S.*\n?)+)")


def render_cli_reference() -> str:
    """Returns the page of the command line, from the help of its commands, as Markdown."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("omnipipe", [], resilient_parsing=True)
    text = get_docs_for_click(obj=command, ctx=context, name="omnipipe", title="omnipipe")
    # A usage is no command that could be run.
    text = _EXAMPLES.sub(_as_block, text).replace("```console\n$ ", "```text\n")
    head, _, rest = text.partition("\n\n")
    return re.sub(r"[ \t]+\n", "\n", f"{head}\n\n{_CLI_NOTE}\n\n{rest}").rstrip("\n") + "\n"


def _as_block(match: re.Match[str]) -> str:
    lines = "".join(f"{line.strip()}\n" for line in match["lines"].splitlines())
    return f"{match['title']}\n\n```shell\n{lines}```\n"


FACTS = "proto/omni_proto/pipeline/components.json"
EXPORTS: dict[str, Callable[[], str]] = {  # path in the repository -> the function that returns the file's text
    "docs/reference/omnipipeline.md": render_reference,
    "docs/reference/omnipipe.md": render_cli_reference,
    "docs/reference/stage-config.schema.json": render_stage_config_schema,
    "manifests/crd/omnipipelines.yaml": render_crd,
    "manifests/crd/omnistages.yaml": render_stage_crd,
    FACTS: render_component_facts,
}


def list_stale() -> list[str]:
    """Returns the paths, relative to the repository, of files that are missing or differ from what would be written."""
    return [
        name
        for name, render in EXPORTS.items()
        if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != render()
    ]


def main() -> int:
    """Write the stale files, or with --check only name them. Returns 1 for stale files with --check, else 0."""
    stale = list_stale()
    if "--check" in sys.argv[1:]:
        for name in stale:
            sys.stderr.write(f"{name} is stale; run `make schemas`\n")
        return 1 if stale else 0
    if FACTS in stale:
        (ROOT / FACTS).write_text(render_component_facts(), encoding="utf-8")
        os.execv(sys.executable, [sys.executable, "-m", "tools.export_schemas"])  # noqa: S606 - again, with the new facts
    for name in stale:
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(EXPORTS[name](), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
