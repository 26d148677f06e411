"""Measures how much rounding alone changes the talker's hidden states: bfloat16 against float32, with random weights.

A router sends a token to its top-k experts. If two experts score nearly the same, rounding decides between them, and
a different expert gives a different result. Several correct ways to compute the same layers are run twice. In the first
run, each way chooses its own experts. In the second run, all ways use the experts that float32 chooses. Each result is
compared with the result in float32 and with that of the first way.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.checks import Context, Finding, at_most
from benchmarks.gpu.qwen3_omni.audio import PUBLISHED

PROMPTS, LENGTH = 32, 8
"""Prompts, and tokens in each: as many as the first prefill of the start-up comparison (compiled_check.py) has."""
TOGETHER = 8
"""Prompts per batch, for the ways that compute several prompts at once."""
FORCED_LIMIT = 2e-2


class Router(nn.Module):
    """transformers' router. It records each token's experts. If `obeys` is set, it uses the experts in `told`."""

    chosen: torch.Tensor
    told: torch.Tensor

    def __init__(self, router: Any, most_tokens: int) -> None:
        super().__init__()
        self.router = router
        shape = (most_tokens, router.top_k)
        self.register_buffer("chosen", torch.zeros(shape, dtype=torch.long, device=router.weight.device))
        self.register_buffer("told", torch.zeros(shape, dtype=torch.long, device=router.weight.device))
        self.obeys = False

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns logits [n, experts], weights and ids [n, top_k] for n tokens."""
        logits, weights, ids = self.router(hidden)
        count = ids.shape[0]
        if self.obeys:
            ids = self.told[:count]
            weights = torch.softmax(logits, dim=-1, dtype=torch.float).gather(-1, ids)
            if self.router.norm_topk_prob:
                weights = weights / weights.sum(dim=-1, keepdim=True)
            weights = weights.to(logits.dtype)
        self.chosen[:count].copy_(ids)
        return logits, weights, ids


def load(device: str, layers: int | None = None) -> Any:
    """Returns transformers' talker with the release's shapes and random weights of gain 1, in bfloat16.

    If `layers` is given, the model has only that many layers.
    """
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerConfig
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeTalkerModel

    torch.manual_seed(0)
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))["talker_config"]
    config = Qwen3OmniMoeTalkerConfig.from_dict(published).text_config
    if layers is not None:
        config.num_hidden_layers = layers
    with torch.device("meta"):
        model = Qwen3OmniMoeTalkerModel._from_config(config, dtype=torch.bfloat16)
    model = model.to_empty(device=device).eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.dim() < 2:
            weight.fill_(1.0)
        else:
            weight.normal_(std=weight.shape[-1] ** -0.5)
    with torch.device(device):
        model.rotary_emb = type(model.rotary_emb)(config)
    for layer in model.layers:
        layer.mlp.gate = Router(layer.mlp.gate, TOGETHER * LENGTH)
    return model


def routers(model: Any) -> list[Router]:
    """Returns the routers of all layers, in order."""
    return [layer.mlp.gate for layer in model.layers]


@torch.inference_mode()
def run(
    model: Any, prompts: torch.Tensor, at_once: int, told: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the last tokens' hidden states, float32 [prompts, hidden], and the experts' ids.

    The ids are [prompts, length, layers, top_k]. `told`: ids that replace the model's own choice.
    """
    hidden: list[torch.Tensor] = []
    chosen: list[torch.Tensor] = []
    for begin in range(0, len(prompts), at_once):
        batch = prompts[begin : begin + at_once].to(model.dtype)
        tokens = batch.shape[0] * batch.shape[1]
        for index, router in enumerate(routers(model)):
            router.obeys = told is not None
            if told is not None:
                router.told[:tokens].copy_(told[begin : begin + at_once, :, index].flatten(0, 1))
        output = model(inputs_embeds=batch, use_cache=False).last_hidden_state
        hidden.append(output[:, -1].float())
        ids = torch.stack([router.chosen[:tokens].clone() for router in routers(model)], dim=1)
        chosen.append(ids.view(*batch.shape[:2], *ids.shape[1:]))
    return torch.cat(hidden), torch.cat(chosen)


def compare(values: torch.Tensor, reference: torch.Tensor) -> dict[str, float]:
    """Returns the relative differences of two tensors [n, hidden]: of all rows together, the median row and the worst
    row."""
    each = (values - reference).norm(dim=-1) / reference.norm(dim=-1)
    whole = (values - reference).norm() / reference.norm()
    return {"whole": float(whole), "median": float(each.median()), "worst": float(each.max())}


def share_of_other_experts(chosen: torch.Tensor, reference: torch.Tensor) -> float:
    """Returns the share of (token, layer) pairs whose set of experts differs."""
    same = (chosen.sort(dim=-1).values == reference.sort(dim=-1).values).all(dim=-1)
    return 1.0 - float(same.float().mean())


def measure(device: str, layers: int | None = None) -> Mapping[str, Mapping[str, Any]]:
    """Returns figures by key: WAY.own with the experts that the way chose, WAY.told with those that float32 chose, and
    fault.NAME for two deliberate faults."""
    model = load(device, layers)
    exact = copy.deepcopy(model).float()
    prompts = 0.6 * torch.randn(PROMPTS, LENGTH, model.config.hidden_size, device=device).to(torch.bfloat16)
    model.set_experts_implementation("eager")
    exact.set_experts_implementation("eager")
    reference, choice = run(exact, prompts, 1)
    del exact
    found: dict[str, dict[str, Any]] = {}
    first: dict[str, torch.Tensor] = {}

    def note(way: str, at_once: int) -> None:
        for whose, told in (("own", None), ("told", choice)):
            hidden, chosen = run(model, prompts, at_once, told)
            first.setdefault(whose, hidden)
            found[f"{way}.{whose}"] = {
                "to_float32": compare(hidden, reference),
                "to_eager": compare(hidden, first[whose]),
                "other_experts": share_of_other_experts(chosen, choice),
            }

    note("eager", 1)
    note("eager_together", TOGETHER)
    model.set_experts_implementation("batched_mm")
    note("eager_batched", 1)
    # With a lower limit, layers would fall back to eager mode, because each may need its own compilation.
    torch._dynamo.config.recompile_limit = 64
    for layer in model.layers:
        layer.compile()
    note("compiled", 1)
    note("compiled_together", TOGETHER)
    # For scale, two real faults: a prompt with one row of another request, and the answer to another request.
    broken = prompts.clone()
    broken[:, 2] = prompts.roll(1, 0)[:, 2]
    found["fault.one_earlier_row"] = {"to_float32": compare(run(model, broken, 1)[0], reference)}
    found["fault.other_request"] = {"to_float32": compare(reference.roll(1, 0), reference)}
    return found


def rounding(context: Context) -> Iterator[Finding]:
    """Measures how much each way's result differs from float32's. Only the runs with float32's experts have a limit."""
    for name, data in measure("cuda").items():
        context.say(f"{name}: {data}")
        limit = FORCED_LIMIT if name.endswith(".told") else float("inf")
        yield at_most(data["to_float32"]["whole"], limit, name=name, data=dict(data))
