"""The dashboards have the form of Grafana's own types: of pages, of each kind of panel and of Prometheus' queries."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.controlplane.binaries import find_binaries
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.full  # builds a program with Go

FILES = sorted((Path(__file__).resolve().parents[3] / "helm" / "omnipipeline" / "files" / "dashboards").glob("*.json"))
Edit = Callable[[dict[str, Any]], None]


def list_problems(page: str) -> list[str]:
    program = find_binaries("grafana-schema")["grafana-schema"]
    done = subprocess.run([program], input=page, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_panel_is_as_grafana_defines_it(file: Path) -> None:
    assert list_problems(file.read_text()) == []


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda page: page.update(titel="x"), "titel"),
        (lambda page: page["panels"][1].update(gridpos={}), "gridpos"),
        (lambda page: page["panels"][1]["options"]["legend"].update(place="top"), "place"),
        (lambda page: page["panels"][1]["fieldConfig"]["defaults"]["custom"].update(lineWitdh=1), "lineWitdh"),
        (lambda page: page["panels"][1]["targets"][0].update(expression="up"), "expression"),
    ],
    ids=["page", "panel", "option", "field", "query"],
)
def test_what_grafana_does_not_know_is_found(edit: Edit, told: str) -> None:
    page = json.loads(next(file for file in FILES if file.stem == "gateway").read_text())
    edit(page)
    assert told in "\n".join(list_problems(json.dumps(page)))
