"""Toy vLLM model classes that use the runners' interfaces: hooks around a step, M-RoPE, one-shot generation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm import ModelRegistry
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.pooler.special import IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree, SupportsMRoPE
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM

from omni_stage.errors import InvalidTensorError
from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.hooks import Positions, SampledTokens, Stretch

from .tiny_text import HIDDEN


class ToyConditioned(Qwen2ForCausalLM):
    """Qwen2 that adds an input row to its input embedding at every position."""

    input_row_size = HIDDEN

    def bind_input_rows(self, buffer: torch.Tensor) -> None:
        self.rows = buffer

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        inputs = self.embed_input_ids(input_ids) + self.rows[: input_ids.shape[0]]
        return self.model(None, positions, None, inputs_embeds=inputs)


class ToyEmbeddings(Qwen2ForCausalLM):
    """Qwen2 that publishes hidden state plus input embedding; for placeholder tokens only the hidden state."""

    placeholder_token_ids = (17, 500, 511)

    def publish_positions(self, positions: Positions) -> dict[str, torch.Tensor]:
        embedded = ~torch.isin(positions.input_ids, torch.tensor(self.placeholder_token_ids))
        embedding = self.embed_input_ids(positions.input_ids)
        return {"rows": positions.hidden_states + embedding * embedded[:, None]}


class ToyLayers(Qwen2ForCausalLM):
    """Qwen2 that publishes, at every second position of the reply, the first layer's output and the token."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kept: list[torch.Tensor] = []
        hook = self.model.layers[0].register_forward_hook(lambda *call: kept.append(call[2][0] + call[2][1]))
        hidden = super().forward(input_ids, positions, *args, **kwargs)
        hook.remove()
        self.first_layer = kept[0]
        return hidden

    def select_positions(self, stretch: Stretch) -> list[tuple[int, int]]:
        start, length, prompt_length = stretch.start, stretch.length, stretch.prompt_length
        every_second = range(max(start, prompt_length + (start + prompt_length) % 2), start + length, 2)
        return [(at - start, at - start + 1) for at in every_second if (at - prompt_length) % 2 == 0]

    def publish_positions(self, positions: Positions) -> dict[str, torch.Tensor]:
        return {"layer": positions.take(self.first_layer), "token_ids": positions.input_ids.long()}


class ToyPredictor(Qwen2ForCausalLM):
    """Qwen2 that returns two codes for each sampled token, and the hidden state that the token was sampled from."""

    def after_sampling(self, sampled: SampledTokens) -> dict[str, torch.Tensor]:
        acted = self.__dict__.setdefault("acted", [])
        acted.append(list(sampled.request_ids))
        codes = torch.stack([sampled.token_ids * 2, sampled.token_ids + 1000], dim=1)
        return {"codes": codes, "states": sampled.hidden_states.clone()}


class ToyMiscompiled(Qwen2ForCausalLM):
    """Qwen2 whose compiled code computes a different result from its eager code."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = super().forward(*args, **kwargs)
        as_written = self.model.do_not_compile or get_forward_context().skip_compiled
        return hidden if as_written else hidden.roll(1, dims=-1)


class ToyMrope(Qwen2ForCausalLM, SupportsMRoPE):
    """Qwen2 with M-RoPE, whose default positions are those of text. A request may bring its own."""

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: Any) -> tuple[torch.Tensor, int]:
        return torch.arange(len(input_tokens)).repeat(3, 1), 0


class _ToyGenerator(nn.Module, IsAttentionFree):
    is_pooling_model = True

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.pooler = IdentityPooler()
        self.batches: list[int] = []

    def embed_input_ids(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise NotImplementedError

    def load_weights(self, weights: Any) -> set[str]:
        for _, tensor in weights:
            self.weight.data.copy_(tensor)
        return {"weight"}


class ToyDiffusion(_ToyGenerator):
    """Scales the request's `x`. The request's `shape` chooses the kind of output or of failure."""

    def generate(self, requests: Sequence[AdditionalInformationPayload]) -> list[Any]:
        self.batches.append(len(requests))
        return [self._one(request) for request in requests]

    def _one(self, request: AdditionalInformationPayload) -> Any:
        shape = request.list("shape")[0]
        y = request.tensor("x") * self.weight
        outcomes: dict[Any, Any] = {
            "tensor": y,
            "list": [y, y + 1],
            "dict": {"wave": y, "ids": torch.arange(3)},
            "bytes": y.to(torch.uint8),
            "nothing": None,
            "complex": y.to(torch.complex64),
            "error": InvalidTensorError("x: this model does not like it", field="x"),
            "foreign error": ValueError(f"quotes {y.tolist()}"),
        }
        if shape == "raise":
            raise RuntimeError(f"quotes {y.tolist()}")
        return outcomes[shape]


class ToyWithoutGenerate(_ToyGenerator):
    """Not a diffusion model: it has no `generate`."""


def use_architecture(checkpoint: Path, architecture: str) -> Path:
    """Makes vLLM load the checkpoint as another class. Returns the checkpoint."""
    file = checkpoint / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": [architecture]}))
    return checkpoint


def register_toy_models() -> None:
    """Registers the classes with vLLM in this process."""
    autoregressive = (ToyConditioned, ToyEmbeddings, ToyLayers, ToyMiscompiled, ToyMrope, ToyPredictor)
    for model in (*autoregressive, ToyDiffusion, ToyWithoutGenerate):
        ModelRegistry.register_model(model.__name__, model)
