"""Breaks token2wav on demand, in the engine's own process, for the check `faults` alone: Python imports this first.

A request whose seed is one of two gets a device-side assertion (an index out of bounds on the GPU), or asks for more
memory than any device has. Nothing in the product can do so; this is reached by PYTHONPATH only.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

_TARGET = "omni_stage.models.qwen2_5_omni.token2wav.model"
_ASSERT_SEED, _OOM_SEED = 1_000_001, 1_000_002


class _Breaker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != _TARGET:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            _break(module.Token2WavModel)

        spec.loader.exec_module = exec_module
        return spec


def _break(model_class):
    import torch

    original = model_class.generate

    def generate(self, requests):
        device = next(self.parameters()).device
        seeds = {int(request.list("seed")[0]) for request in requests if "seed" in request}
        if _OOM_SEED in seeds:
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        if _ASSERT_SEED in seeds:
            index = torch.full((1,), 1 << 20, device=device)
            torch.zeros(4, device=device).index_select(0, index).cpu()
        return original(self, requests)

    model_class.generate = generate


sys.meta_path.insert(0, _Breaker())
