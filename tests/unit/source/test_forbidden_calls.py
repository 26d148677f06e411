"""What no shipped source may call: functions that turn bytes into code or objects, and the wall clock.

MAY_READ_THE_WALL_CLOCK lists the files that may read it, and why. Only one file may open gRPC channels. ruff's S rules
forbid most functions that turn bytes into code or objects in the whole repository. These tests also cover the generated
stubs and lines with `noqa`, in every package of the wheel.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from omni_proto.pipeline.read import load

ROOT = Path(__file__).parents[3]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
    "packages"
]
PICKLES = frozenset(
    {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
)
BUILTINS = frozenset({"eval", "exec", "compile", "__import__"})
YAML = frozenset({"yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load"})
SAFE_IF = {"torch.load": ("weights_only", True), "numpy.load": ("allow_pickle", False)}
"""Functions that may be called only with this keyword argument, given as a literal."""

WALL_CLOCK = frozenset(
    {
        "time.time",
        "time.time_ns",
        "time.localtime",
        "time.gmtime",
        "time.ctime",
        "time.strftime",
        "datetime.datetime.now",
    }
    | {"datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"}
)
CHANNELS = frozenset(f"grpc.{kind}{name}" for kind in ("", "aio.") for name in ("insecure_channel", "secure_channel"))
OPENS_CHANNELS = "omni_proto/rpc/channels.py"
"""The only file that opens channels: it sets the options that keep gRPC from crashing."""
MAY_READ_THE_WALL_CLOCK = {
    "omni_cli/ask_options.py": "when a run began, in the files of `omnipipe bench --aiperf`",
    "omni_gateway/entries/pipelines.py": "OpenAI's `created`; nothing ends by it",
    "omni_gateway/guard/middleware.py": "a client secret ends by the wall clock, at whichever gateway it is shown",
    "omni_gateway/http_server/app.py": "the same, where client secrets are made",
    "omni_stage/process/compile_cache.py": "the age of files on a volume, before those that nobody uses are deleted",
    "omni_stage/models/shared/text/template_worker.py": "what day it is, for chat templates that tell the model",
    "omni_stage/service/request/tracing.py": "when a request was accepted; all else there is monotonic",
    "omni_stage/service/server/tls.py": "certificates expire by the wall clock",
    "omni_kube/api/timing.py": "until the API server has told its own time",
    "omni_kube/lease.py": "the time in the Lease, for people; who holds it is decided by a monotonic clock",
}


def sources() -> dict[str, ast.Module]:
    """Returns the syntax trees of all shipped files, by their path from the package's parent."""
    found = {}
    for package in PACKAGES:
        folder = ROOT / package
        for file in sorted(folder.rglob("*.py")):
            found[str(file.relative_to(folder.parent))] = ast.parse(file.read_text(), str(file))
    return found


@pytest.fixture(scope="module")
def shipped() -> dict[str, ast.Module]:
    return sources()


def full_names(tree: ast.Module) -> dict[str, str]:
    """Returns the names that a file's imports bind: name -> full name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """Returns the full name that an expression refers to; empty if it is not a dotted name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = dotted(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return ""


def find_objects_from_bytes(tree: ast.Module) -> Iterator[str]:
    names = full_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"{node.lineno}: import {name}" for name in modules if name.partition(".")[0] in PICKLES)
        elif isinstance(node, ast.Name | ast.Attribute):
            name = dotted(node, names)
            if name in YAML or name in BUILTINS or name.removeprefix("builtins.") in BUILTINS:
                yield f"{node.lineno}: {name}"
        elif isinstance(node, ast.Call) and (safe := SAFE_IF.get(dotted(node.func, names))):
            given = {one.arg: getattr(one.value, "value", None) for one in node.keywords}
            if given.get(safe[0]) is not safe[1]:
                yield f"{node.lineno}: {dotted(node.func, names)} without {safe[0]}={safe[1]}"


def find_wall_clock(tree: ast.Module) -> Iterator[str]:
    yield from find_names(tree, WALL_CLOCK)


def find_names(tree: ast.Module, wanted: frozenset[str]) -> Iterator[str]:
    names = full_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and (name := dotted(node, names)) in wanted:
            yield f"{node.lineno}: {name}"


def test_every_package_of_the_wheel_is_read(shipped: dict[str, ast.Module]) -> None:
    """The tests read every package of the wheel."""
    assert {path.partition("/")[0] for path in shipped} == {
        "omni_proto",
        "omni_stage",
        "omni_kube",
        "omni_operator",
        "omni_gateway",
        "omni_cli",
        "omnipipeline",
    }
    assert len(shipped) > 250


def test_nothing_makes_objects_or_code_of_bytes(shipped: dict[str, ast.Module]) -> None:
    found = {path: list(find_objects_from_bytes(tree)) for path, tree in shipped.items()}
    (strict,) = found.pop("omni_proto/pipeline/read/load.py")
    assert strict.endswith("yaml.load_all")
    assert issubclass(load.StrictLoader, yaml.CSafeLoader | yaml.SafeLoader)
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_files_that_read_the_wall_clock_have_a_reason(shipped: dict[str, ast.Module]) -> None:
    assert {path for path, tree in shipped.items() if list(find_wall_clock(tree))} == set(MAY_READ_THE_WALL_CLOCK)


def test_channels_are_opened_in_one_place(shipped: dict[str, ast.Module]) -> None:
    assert {path for path, tree in shipped.items() if list(find_names(tree, CHANNELS))} == {OPENS_CHANNELS}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as safe",
        "import marshal, json",
        "eval('1')",
        "run = exec",
        "import builtins\nbuiltins.eval('1')",
        "import torch\ntorch.load(f)",
        "from torch import load\nload(f, weights_only=False)",
        "import numpy as np\nnp.load(f)",
        "import yaml\nyaml.load(f, yaml.CLoader)",
    ],
)
def test_what_is_found(code: str) -> None:
    """find_objects_from_bytes reports each of these sources."""
    assert list(find_objects_from_bytes(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "import re\nre.compile('x')",
        "import torch\ntorch.load(f, weights_only=True)",
        "import numpy\nnumpy.load(f, allow_pickle=False)",
        "import json\njson.load(f)",
        "model.eval()",
    ],
)
def test_what_is_not(code: str) -> None:
    """find_objects_from_bytes does not report these sources, which look similar."""
    assert not list(find_objects_from_bytes(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    ["import time\ntime.time()", "from time import time as now\nnow()", "from datetime import datetime as d\nd.now()"],
)
def test_which_clock_is_found(code: str) -> None:
    assert list(find_wall_clock(ast.parse(code)))
    assert not list(find_wall_clock(ast.parse("import time\ntime.monotonic()")))
