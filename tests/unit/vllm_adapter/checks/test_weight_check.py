"""Which tensors a checkpoint must have for a model, which it may have, and which are refused. Uses a toy model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn
from vllm.model_executor.models.utils import AutoWeightsLoader, StageMissingLayer, WeightsMapper

from omni_stage.errors import ConfigurationError
from omni_stage.vllm_adapter.checks.weights import load_checked

MAPPER = WeightsMapper(orig_to_new_prefix={"other.": None, "mine.": ""})


class Toy(nn.Module):
    """A linear layer, a fused one and a tied one, a persistent and a computed buffer, and a part that is left out."""

    packed_modules_mapping = {"qkv": ["q", "k"]}

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.qkv = Fused()
        self.tied = nn.Linear(2, 3, bias=False)
        self.tied.weight = self.first.weight
        self.register_buffer("statistics", torch.zeros(2))
        self.register_buffer("computed", torch.zeros(2), persistent=False)
        self.encoder = StageMissingLayer("encoder")

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loader = AutoWeightsLoader(self, ignore_unexpected_prefixes=["tied."])
        names: set[str] = loader.load_weights(weights, mapper=MAPPER)
        return names


class Fused(nn.Module):
    """A layer whose parts are loaded one by one, as in vLLM's fused layers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 2))


def fused_loader(toy: Toy) -> Any:
    def load(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded = set()
        for name, tensor in MAPPER.apply(weights):
            if ".q." in f".{name}" or ".k." in f".{name}":
                toy.qkv.weight.data[:2].copy_(tensor)
                loaded.add("qkv.weight")
            else:
                loaded |= toy.load([(f"mine.{name}", tensor)])
        return loaded

    return load


def whole() -> dict[str, torch.Tensor]:
    return {
        "mine.first.weight": torch.ones(3, 2),
        "mine.first.bias": torch.ones(3),
        "mine.q.weight": torch.ones(2, 2),
        "mine.k.weight": torch.ones(2, 2),
        "other.first.weight": torch.ones(7),
    }


def load(tensors: dict[str, torch.Tensor], **settings: Any) -> Toy:
    toy = Toy()
    load_checked(toy, tensors.items(), fused_loader(toy), mapper=MAPPER, **settings)
    return toy


ADMITTED = {
    "the whole": {},
    "a persistent buffer": {"mine.statistics": torch.ones(2)},
    "a part that is left out": {"mine.encoder.layers.0.weight": torch.ones(5)},
    "a table of rotary embeddings": {"mine.rotary_emb.inv_freq": torch.ones(5)},
    "what is ignored by name": {"mine.table": torch.ones(5)},
    "another component's": {"other.anything": torch.ones(5)},
}


@pytest.mark.parametrize("case", ADMITTED)
def test_admitted(case: str) -> None:
    toy = load({**whole(), **ADMITTED[case]}, ignored=("mine.table",))
    assert toy.first.weight.sum() == 6
    assert toy.qkv.weight.sum() == 4


REFUSED: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "one is missing": ({"mine.first.bias": None}, r"1 tensor is missing: mine\.first\.bias\."),
    "a part of a fused one is missing": ({"mine.k.weight": None}, r"1 tensor is missing: mine\.k\.weight\."),
    "one is unknown": ({"mine.second.weight": torch.ones(1)}, r"1 tensor is unknown: mine\.second\.weight\."),
    "a bias is unknown": ({"mine.q.bias": torch.ones(2)}, r"1 tensor is unknown: mine\.q\.bias\."),
    "a buffer that is computed": ({"mine.computed": torch.ones(2)}, r"unknown: mine\.computed\."),
    "both": (
        {"mine.first.bias": None, "mine.q.weight": None, "mine.x": torch.ones(1)},
        r"2 tensors are missing: mine\.first\.bias, mine\.q\.weight; 1 tensor is unknown: mine\.x\.",
    ),
    "another shape": ({"mine.first.weight": torch.ones(2, 3)}, r"mine\.first\.weight is \[2, 3\], .* \[3, 2\]"),
    "another shape of a part": ({"mine.k.weight": torch.ones(3, 3)}, r"mine\.k\.weight \[3, 3\] does not fit"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case: str) -> None:
    changes, words = REFUSED[case]
    tensors = {name: tensor for name, tensor in {**whole(), **changes}.items() if tensor is not None}
    with pytest.raises(ConfigurationError, match=words) as caught:
        load(tensors)
    assert caught.value.details.field == "model.path"


def test_many_names_make_a_short_error() -> None:
    extra = {f"mine.{'long' * 50}.{index}": torch.ones(1) for index in range(1000)}
    with pytest.raises(ConfigurationError, match=r"1000 tensors are unknown: .* and 995 more") as caught:
        load({**whole(), **extra})
    assert len(str(caught.value).encode()) < 1024, "it fits a termination message"
