"""Draws an OmniPipeline for `omnipipe status`: its conditions, then its stages as a graph. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

Json = Mapping[str, Any]

_GOOD = {"Ready": "True", "Progressing": "False", "Degraded": "False", "SpecUnderstood": "True"}
_BAD_STYLES = {"Ready": "red", "Progressing": "yellow", "Degraded": "red"}


def draw_status(document: Json) -> RenderableType:
    """Returns the drawing of an OmniPipeline. document is the resource as the API server returns it."""
    metadata, status = document["metadata"], document.get("status") or {}
    head = Text.assemble((metadata["name"], "bold"), f"  namespace {metadata['namespace']}")
    if status.get("url"):
        head.append(f"  {status['url']}")
    if not status.get("conditions"):
        return Group(head, Text("no status yet: is the operator running?", "yellow"), _draw_graph(document, status))
    parts: list[RenderableType] = [head]
    if status.get("observedGeneration") != metadata.get("generation"):
        parts.append(Text("the operator has not seen the last edit yet; this is the state before it", "yellow"))
    taken = [one for one in status.get("names", ()) if not one.get("since")]
    names = [Text(f"the name {one['name']} {one.get('message', '')}", "yellow") for one in taken]
    return Group(*parts, _draw_conditions(status["conditions"]), *names, _draw_graph(document, status))


def _draw_conditions(conditions: Sequence[Json]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for condition in conditions:
        kind = condition["type"]
        style = "green" if condition["status"] == _GOOD.get(kind) else _BAD_STYLES.get(kind, "yellow")
        table.add_row(
            kind, Text(condition["status"], style), Text(condition["reason"], style), Text(condition.get("message", ""))
        )
    return table


def _draw_graph(document: Json, status: Json) -> RenderableType:
    stages: Sequence[Json] = document["spec"]["stages"]
    entries = {entry["name"]: entry for entry in status.get("stages") or ()}
    roots = [stage for stage in stages if not stage.get("inputs")]
    trees = [_draw_stage(stage, stages, entries) for stage in roots]
    known = {stage["name"] for stage in stages}
    former = [entry for name, entry in entries.items() if name not in known]
    if former:
        # Another revision serves, and the spec no longer shows its graph.
        tree = Tree(Text("still serving, from an older spec:"))
        for entry in former:
            tree.add(_draw_entry(entry["name"], entry))
        trees.append(tree)
    return Group(*trees)


def _draw_stage(stage: Json, stages: Sequence[Json], entries: Mapping[str, Json], mode: str = "") -> Tree:
    tree = Tree(_draw_entry(stage["name"], entries.get(stage["name"]), stage, mode))
    for reader in stages:
        for edge in reader.get("inputs") or ():
            if edge["from"] == stage["name"]:
                tree.add(_draw_stage(reader, stages, entries, edge.get("mode", "Full")))
    return tree


def _draw_entry(name: str, entry: Json | None, stage: Json | None = None, mode: str = "") -> Text:
    entry = entry or {}
    wanted, ready = entry.get("replicas", 0), entry.get("readyReplicas", 0)
    style = "green" if wanted and ready >= wanted else "yellow" if ready else "red" if wanted else "dim"
    text = Text.assemble((f"{mode} -> ", "dim") if mode else "", ("● ", style), (name, "bold"))
    text.append(f"  {ready}/{wanted} ready" if entry else "  not there yet", style)
    if entry.get("revision"):
        text.append(f"  revision {entry['revision']}")
    if stage is not None:
        text.append(f"  {stage['component']}", "dim")
        if stage.get("outputs"):
            text.append(f"  returns {', '.join(stage['outputs'])}", "dim")
    if entry.get("message"):
        text.append(f"\n{entry['message']}", style)
    return text
