"""The operator's garbage collector runs rarely and never scans what was imported, but it still collects cycles."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from omni_operator.__main__ import EXIT_SETTINGS, GC_THRESHOLDS
from support.processes.polling import PATIENCE_S


def run_program(code: str) -> dict[str, Any]:
    """Runs code in a new process, where nothing has configured the collector. Returns the JSON that it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


STATE = "dict(on=gc.isenabled(), thresholds=gc.get_threshold(), frozen=gc.get_freeze_count())"


def test_the_program_sets_the_collector_before_it_does_anything_else() -> None:
    state = run_program(
        "import gc, json\n"
        "before = gc.get_freeze_count()\n"  # Python 3.12 starts with some
        "from omni_operator.__main__ import main\n"
        "assert gc.get_freeze_count() == before, 'an import changes nothing'\n"
        "code = main(['--kubeconfig=/does/not/exist'])\n"
        f"print(json.dumps({STATE} | dict(code=code)))"
    )
    assert state["code"] == EXIT_SETTINGS, "the program ends because it finds no kubeconfig"
    assert state["on"]
    assert tuple(state["thresholds"]) == GC_THRESHOLDS
    assert state["frozen"] > 50_000, "kopf, aiohttp and pydantic alone have more objects"


def test_cycles_are_still_collected() -> None:
    state = run_program(
        "import gc, json, weakref\n"
        "from omni_operator.__main__ import GC_THRESHOLDS, spare_collections\n"
        "spare_collections()\n"
        "class Cycle:\n"
        "    def __init__(self): self.me = self\n"
        "cycles = [weakref.ref(Cycle()) for _ in range(20 * GC_THRESHOLDS[0])]\n"
        "print(json.dumps(dict(left=sum(cycle() is not None for cycle in cycles), made=len(cycles))))"
    )
    assert state["left"] < state["made"] / 10


def test_what_was_garbage_before_the_freeze_is_not_kept_by_it() -> None:
    state = run_program(
        "import gc, json, weakref\n"
        "from omni_operator.__main__ import spare_collections\n"
        "gc.disable()\n"
        "class Cycle:\n"
        "    def __init__(self): self.me = self\n"
        "before = weakref.ref(Cycle())\n"
        "gc.enable()\n"
        "spare_collections()\n"
        "print(json.dumps(dict(kept=before() is not None)))"
    )
    assert not state["kept"]
