"""Lets a stage draw the weights that a shaped checkpoint leaves out, for the checks alone: Python imports this first.

A stage none of whose layers are in the checkpoint's index is loaded with vLLM's `load_format="dummy"`. Nothing in the
product can do so; this is reached by PYTHONPATH only.
"""

import json
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path

_TARGET = "omni_stage.engine.vllm_engine"
_LEFT_OUT = "left-out.json"


class _Drawer(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != _TARGET:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            _draw(module)

        spec.loader.exec_module = exec_module
        return spec


def _draw(module):
    original = module.vllm_engine_kwargs

    def changed(args, *, on_cpu):
        kwargs = original(args, on_cpu=on_cpu)
        file = Path(str(kwargs["model"])) / _LEFT_OUT
        overrides = getattr(kwargs.get("hf_overrides"), "__name__", "")
        if file.exists() and overrides in json.loads(file.read_text()):
            kwargs["load_format"] = "dummy"
        return kwargs

    module.vllm_engine_kwargs = changed


sys.meta_path.insert(0, _Drawer())
