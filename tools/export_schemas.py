"""Writes the CRD, its reference page and the stage file's schema in docs/reference, and the built-in components' facts.

The CRD and its reference page are made from the file of facts that was read when this process started. So if the facts
are stale, this process writes them alone, and then starts itself again. `--check` writes nothing and fails if a file is
stale.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from omni_proto.pipeline.components import render_components
from omni_proto.pipeline.crd.crd import render_crd
from omni_proto.pipeline.crd.reference import render_reference
from omni_proto.stage_config import StageConfig
from omni_stage.models.registry import built_in_facts

ROOT = Path(__file__).resolve().parent.parent


def render_stage_config_schema() -> str:
    """Returns the JSON schema (draft 2020-12) of the stage file."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **StageConfig.model_json_schema(by_alias=True),
    }
    return json.dumps(schema, indent=2) + "\n"


def render_component_facts() -> str:
    """Returns the text of components.json: the facts of the built-in components, from their families' manifests."""
    return render_components(built_in_facts())


FACTS = "proto/omni_proto/pipeline/components.json"
EXPORTS = {  # path in the repository -> the function that returns the file's text
    "docs/reference/omnipipeline.md": render_reference,
    "docs/reference/stage-config.schema.json": render_stage_config_schema,
    "manifests/crd/omnipipelines.yaml": render_crd,
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
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - this script again, with the new facts
    for name in stale:
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(EXPORTS[name](), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
