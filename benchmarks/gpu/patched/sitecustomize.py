"""Changes two modules of a stage when they are imported, for the checks on a GPU.

Python imports this file at start-up if its folder is on PYTHONPATH, which only the checks set. Each change takes effect
only under its own condition:

- For a request with one of two seeds, token2wav fails. One seed causes a device-side assertion (an index out of bounds
  on the GPU). The other allocates more memory than any device has.
- If the checkpoint has a file left-out.json that names a stage's configuration hook, that stage gets random weights
  (vLLM's `load_format="dummy"`). Only shaped checkpoints have that file.
"""

import json
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path

_ASSERT_SEED, _OOM_SEED = 1_000_001, 1_000_002
_LEFT_OUT = "left-out.json"


def fail_for_seeds(module):
    """Changes the module so that token2wav fails for a request with one of the two seeds."""
    import torch

    original = module.Token2WavModel.generate

    def generate(self, requests):
        device = next(self.parameters()).device
        seeds = {int(request.list("seed")[0]) for request in requests if "seed" in request}
        if _OOM_SEED in seeds:
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        if _ASSERT_SEED in seeds:
            index = torch.full((1,), 1 << 20, device=device)
            torch.zeros(4, device=device).index_select(0, index).cpu()
        return original(self, requests)

    module.Token2WavModel.generate = generate


def load_random_weights(module):
    """Changes the module so that a stage creates the random weights that a shaped checkpoint leaves out."""
    original = module.vllm_engine_kwargs

    def changed(args, *, on_cpu):
        kwargs = original(args, on_cpu=on_cpu)
        file = Path(str(kwargs["model"])) / _LEFT_OUT
        overrides = getattr(kwargs.get("hf_overrides"), "__name__", "")
        if file.exists() and overrides in json.loads(file.read_text()):
            kwargs["load_format"] = "dummy"
        return kwargs

    module.vllm_engine_kwargs = changed


PATCHES = {
    "omni_stage.models.qwen2_5_omni.token2wav.model": fail_for_seeds,
    "omni_stage.engine.vllm_engine": load_random_weights,
}
"""Module -> the function that changes it."""


class _Patcher(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        patch = PATCHES.get(name)
        spec = PathFinder.find_spec(name, path) if patch else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Patcher())
