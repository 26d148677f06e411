"""Generates files of helm/omnipipeline: values.schema.json, README.md and files/defaults.json from values.yaml, and
a copy of the operator's RBAC rules from manifests/ (files/crd.yaml is a link to the CRD).

Comments in values.yaml describe each value. `# -- TEXT` before a value is its description. Rules for the schema may
follow: `# @enum A B` lists the allowed words, `# @min N` and `# @max N` bound a number, `# @pattern REGEX` restricts a
string, `# @form name|host` to an object's name or a host name, `# @items string|port|object|host|REGEX` restricts the
items of a list, and `# @map labels|annotations` restricts the keys and values of a map. `# @setting NAME` takes the
bounds from the operator's setting of that name, so that Helm refuses what would end the program; `# @setting gateway`
takes the whole schema from the gateway's settings. Types come from the defaults. Helm removes values that are null
before it reads the schema. A map with a description may have any
keys; a map without one may have only the keys in values.yaml. `--check` writes nothing and fails if a file is stale.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tools.json_text import format_json

from omni_gateway.settings import GatewaySettings
from omni_operator.process.settings import describe_bounds

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm" / "omnipipeline"
MANIFESTS = ROOT / "manifests"
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][A-Za-z0-9]*):")
_LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?$"
_LABEL = r"^([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?$"
_FORMS = {
    "name": "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?",
    "host": r"(\*\.)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?",
}
"""Names of objects, and of hosts, which the API server would refuse only in the midst of an installation, or never."""
_NOT_IN_CLUSTERS = ("keysFile", "entryCa", "entryCertificate", "entryKey", "modelAliases")
"""Settings of a gateway that the chart sets itself, or that a gateway in a cluster refuses."""
_TYPES: tuple[tuple[type, str], ...] = ((bool, "boolean"), (int, "integer"), (str, "string"), (list, "array"))


@dataclass(frozen=True)
class Notes:
    """The content of the comments before a value."""

    description: str = ""
    enum: tuple[str, ...] = ()
    rules: dict[str, Any] = field(default_factory=dict)
    """Keywords that are copied into the schema."""


@dataclass
class _Pending:
    lines: list[str] = field(default_factory=list)

    def take(self) -> Notes:
        description, rules = "", dict[str, Any]()
        for line in self.lines:
            tag, _, rest = line.partition(" ")
            if tag == "--":
                description = rest
            elif tag.startswith("@"):
                rules |= _read_rule(tag, rest)
            elif description:
                description += f" {line}"
        self.lines = []
        return Notes(description, tuple(rules.get("enum", ())), rules)


def _read_rule(tag: str, rest: str) -> dict[str, Any]:
    match tag:
        case "@enum":
            return {"enum": rest.split()}
        case "@min":
            return {"minimum": int(rest)}
        case "@max":
            return {"maximum": int(rest)}
        case "@setting" if rest == "gateway":
            return describe_gateway_settings()
        case "@setting":
            return describe_bounds(rest)
        case "@pattern":
            return {"pattern": rest}
        case "@form":
            return {"pattern": f"^({_FORMS[rest]})?$"}
        case "@items" if rest in _FORMS:
            return {"items": {"type": "string", "pattern": f"^{_FORMS[rest]}$"}, "uniqueItems": True}
        case "@items" if rest == "port":
            return {"items": {"type": "integer", "minimum": 1, "maximum": 65535}}
        case "@items" if rest in ("string", "object"):
            return {"items": {"type": rest}}
        case "@items":
            return {"items": {"type": "string", "pattern": rest}, "uniqueItems": True}
        case "@map":
            value = {"type": ["string", "null"]} | ({"pattern": _LABEL} if rest == "labels" else {})
            return {"patternProperties": {_LABEL_KEY: value}, "additionalProperties": False}
        case _:
            raise SystemExit(f"values.yaml: unknown tag {tag}")


def describe_gateway_settings() -> dict[str, Any]:
    """Returns the JSON schema of the gateway's settings in a cluster, without references and descriptions."""
    schema = GatewaySettings.model_json_schema(by_alias=True)
    settings = _simplify(schema, schema["$defs"])
    for name in _NOT_IN_CLUSTERS:
        del settings["properties"][name]
    return {key: settings[key] for key in ("additionalProperties", "properties")}


def _simplify(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_simplify(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _simplify(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    properties = {name: _simplify(part, definitions) for name, part in schema.get("properties", {}).items()}
    kept = {key: part for key, part in schema.items() if key not in ("title", "description", "default", "$defs")}
    simple = {key: _simplify(part, definitions) for key, part in kept.items() if key != "properties"}
    if isinstance(simple.get("type"), str):
        simple["type"] = [simple["type"], "null"]
    return simple | ({"properties": properties} if properties else {})


def read_notes(text: str) -> dict[str, Notes]:
    """Returns the notes of each value by its dotted path. A flow-style map (`{cpu: 50m}`) is one value."""
    notes: dict[str, Notes] = {}
    path: list[tuple[int, str]] = []
    pending = _Pending()
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            pending.lines.append(stripped.lstrip("#").strip())
        elif not stripped:
            pending.lines = []
        elif match := _KEY.match(line):
            indent = len(match["indent"])
            path = [(at, key) for at, key in path if at < indent] + [(indent, match["key"])]
            notes[".".join(key for _, key in path)] = pending.take()
    return notes


def build_schema(values: dict[str, Any], notes: dict[str, Notes], prefix: str = "") -> dict[str, Any]:
    """Returns the JSON schema of a map of values. Keys that values.yaml does not name are refused, except `global`."""
    properties: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        note = notes.get(path, Notes())
        if isinstance(value, dict) and not note.description:
            properties[key] = build_schema(value, notes, f"{path}.")
            continue
        kind = "object" if isinstance(value, dict) else next(name for type_, name in _TYPES if isinstance(value, type_))
        properties[key] = {"type": kind, "description": note.description} | note.rules
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    if prefix:
        return schema
    # Helm copies the `global` values of a parent chart into every subchart.
    properties["global"] = {
        "type": "object",
        "properties": {"imageRegistry": {"type": ["string", "null"]}, "imagePullSecrets": {"type": ["array", "null"]}},
    }
    return {"$schema": "https://json-schema.org/draft-07/schema#", **schema}


def list_defaults(values: dict[str, Any], notes: dict[str, Notes], prefix: str = "") -> dict[str, Any]:
    """Returns the values without lists and maps of any keys, which have no defaults that a template depends on."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and not notes[f"{prefix}{key}"].description:
            found[key] = list_defaults(value, notes, f"{prefix}{key}.")
        elif not isinstance(value, dict | list):
            found[key] = value
    return found


def list_values(values: dict[str, Any], notes: dict[str, Notes], prefix: str = "") -> Iterator[tuple[str, Any, Notes]]:
    """Yields path, default and notes of each leaf value, in the order of the file."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and not notes[path].description:
            yield from list_values(value, notes, f"{path}.")
        else:
            yield path, value, notes[path]


def build_readme(values: dict[str, Any], notes: dict[str, Notes], chart: dict[str, Any]) -> str:
    """Returns the text of the chart's README.md."""
    rows = []
    for path, value, note in list_values(values, notes):
        words = f" One of {', '.join(note.enum)}." if note.enum else ""
        rows.append(f"| `{path}` | `{json.dumps(value)}` | {note.description}{words} |")
    return "\n".join(
        (
            "# omnipipeline",
            "",
            chart["description"],
            "",
            "```console",
            "$ helm install omnipipeline helm/omnipipeline --namespace omnipipeline-system --create-namespace",
            "```",
            "",
            "[docs/install.md](../../docs/install.md) explains installation and what a removal leaves behind.",
            "[docs/upgrade.md](../../docs/upgrade.md) explains upgrades.",
            "",
            "Generated by `make chart` from `values.yaml`; edit that.",
            "",
            "| value | default | what |",
            "|---|---|---|",
            *rows,
            "",
        )
    )


def render() -> dict[Path, str]:
    """Returns the generated files and their contents. Raises SystemExit if a value has no description."""
    text = (CHART / "values.yaml").read_text()
    values, notes = yaml.safe_load(text), read_notes(text)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    missing = [path for path, _, note in list_values(values, notes) if not note.description]
    if missing:
        raise SystemExit(f"values.yaml: no description (`# -- ...`) of {', '.join(missing)}")
    return {
        CHART / "values.schema.json": format_json(build_schema(values, notes)),
        CHART / "files" / "defaults.json": format_json(list_defaults(values, notes)),
        CHART / "README.md": build_readme(values, notes, chart),
        CHART / "files" / "operator-rules.yaml": read_operator_rules((MANIFESTS / "rbac" / "cluster.yaml").read_text()),
    }


def read_operator_rules(manifests: str) -> str:
    """Returns the rules of the only ClusterRole in the manifests, with their comments.

    Raises ValueError unless there is exactly one.
    """
    (role,) = (part for part in manifests.split("\n---\n") if "\nkind: ClusterRole\n" in part)
    return (
        "# The rules of manifests/rbac/cluster.yaml, which `make chart` copies here.\n"
        + role.split("\nrules:\n")[1]
        + "\n"
    )


def main(arguments: list[str]) -> int:
    """Write the stale files, or name them if the arguments have --check. Returns 1 for stale files with --check."""
    stale = []
    for path, content in render().items():
        if not path.exists() or path.read_text() != content:
            stale.append(path.relative_to(ROOT).as_posix())
            if "--check" not in arguments:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
    if stale and "--check" in arguments:
        sys.stderr.write(f"stale: {', '.join(stale)}; run `make chart`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
