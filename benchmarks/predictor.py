"""Compares Qwen3-Omni's code predictor with a bare torch loop, transformers' predictor and the talker's layers.

All have the published shapes and random weights in float32, but the talker's layers have fewer experts (EXPERTS). A
frame has 16 codes. In each step of the talker, the predictor makes 15 of them, one by one. The bare loop has only the
matrix products and the attention: no norms, no rotary embedding and no sampling. In eager torch, no complete predictor
of these shapes can cost less.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.interleave import median_ratio, time_rounds
from benchmarks.harness.report import Options, Report, Row
from benchmarks.harness.verdict import Ratio

if TYPE_CHECKING:
    import torch

BATCHES = (1, 8)
CEILING = 1.2
"""Upper bound of a frame's cost, relative to the bare loop."""
TOLERANCE = 0.25
ROUNDS = 5
TABLE = "one frame for each request of a batch"
OURS, BARE, PEER, TALKER = "our predictor, sampled", "bare loop", "transformers' generate", "the talker's layers"
CONTEXT = 100
"""Positions in the talker's KV cache: 8 s of speech."""
EXPERTS = 16
"""Experts in a layer of the talker. The release has 128, which need too much memory. As many experts are active per
token as in the release."""
CONFIG = Path(__file__).parents[1] / "tests" / "data" / "published" / "qwen3_omni_30b_a3b.config.json"
NOTES = [
    "cpu_ms: CPU time of one thread, which other load on the machine disturbs less than wall time.",
    "share_of_step: the side's time divided by the sum of its time and that of the talker's layers, which compute one "
    f"position of each request after {CONTEXT} others. Eager float32 on a CPU. On a GPU the share depends on memory "
    "speed and kernel launches.",
    f"The talker's layers have {EXPERTS} experts instead of 128, with the published number active per token. At batch "
    "8 the published layers would read more experts, so there the real share is at most the one shown.",
]


def measure(options: Options) -> Report:
    """Returns a row for each batch size and side."""
    import torch

    torch.set_num_threads(1)  # More threads would spin while they wait for each other, and CPU time would mean nothing.
    with torch.inference_mode(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, layers = make_predictor(), make_talker_layers()
        rows: list[Row] = []
        for batch in BATCHES:
            sides = make_sides(model, layers, batch)
            seconds = time_rounds(sides, options.rounds or ROUNDS, time.process_time)
            talker = statistics.median(seconds[TALKER])
            rows += [
                {
                    "batch": batch,
                    "side": name,
                    "cpu_ms": round(1e3 * statistics.median(taken), 1),
                    "ratio_to_bare_loop": round(median_ratio(taken, seconds[BARE]), 2),
                    "share_of_step": None
                    if name == TALKER
                    else round(statistics.median(taken) / (statistics.median(taken) + talker), 2),
                }
                for name, taken in seconds.items()
            ]
    return Report({TABLE: rows}, find_ratios(rows), NOTES)


def find_ratios(rows: Sequence[Row]) -> list[Ratio]:
    """Returns the cost of our predictor relative to the bare loop, by batch size."""
    return [
        Ratio(f"x {BARE}, batch {row['batch']}", row["ratio_to_bare_loop"], at_most=CEILING, tolerance=TOLERANCE)
        for row in rows
        if row["side"] == OURS
    ]


def make_sides(model: Any, layers: Callable[[int], object], batch: int) -> dict[str, Callable[[], object]]:
    """Returns the sides as functions, by name. All but the talker's layers make one frame's codes for each request."""
    import torch

    from omni_stage.models.qwen3_omni.talker.predictor import CodePredictor

    predictor, width = CodePredictor(model), model.config.hidden_size
    hidden, first = torch.randn(2, batch, width)
    greedy = torch.zeros(batch, dtype=torch.bool)
    seeds, positions = torch.arange(batch), torch.arange(batch)
    inputs = torch.stack([hidden, first], dim=1)
    return {
        OURS: lambda: predictor.predict(hidden, first, greedy, seeds, positions),
        BARE: lambda: run_bare(model, inputs),
        PEER: lambda: model.generate(
            inputs_embeds=inputs, max_new_tokens=predictor.groups - 1, do_sample=True, top_k=50, top_p=0.8
        ),
        TALKER: lambda: layers(batch),
    }


def run_bare(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Run the matrix products and the attention in the predictor's order and shapes.

    Returns meaningless codes [batch, groups - 1]. Without the residual sums, the values would shrink to denormal
    numbers, which a CPU computes slowly.
    """
    import torch
    import torch.nn.functional as F

    config, layers, groups = model.config, model.model.layers, model.config.num_code_groups
    shape = (len(layers), len(inputs), config.num_key_value_heads, groups, config.head_dim)
    keys, values = torch.empty(shape), torch.empty(shape)
    codes: list[torch.Tensor] = []
    begin = 0
    for group in range(groups - 1):
        end, hidden = begin + inputs.shape[1], inputs
        for index, layer in enumerate(layers):
            own, mlp = layer.self_attn, layer.mlp
            query = F.linear(hidden, own.q_proj.weight).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
            key = F.linear(hidden, own.k_proj.weight).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
            keys[index, :, :, begin:end] = key
            value = F.linear(hidden, own.v_proj.weight).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
            values[index, :, :, begin:end] = value
            mixed = F.scaled_dot_product_attention(
                query,
                keys[index, :, :, :end],
                values[index, :, :, :end],
                is_causal=begin == 0,
                enable_gqa=True,
            )
            hidden = hidden + F.linear(mixed.transpose(1, 2).flatten(2), own.o_proj.weight)
            gated = F.silu(F.linear(hidden, mlp.gate_proj.weight)) * F.linear(hidden, mlp.up_proj.weight)
            hidden = hidden + F.linear(gated, mlp.down_proj.weight)
        codes.append(F.linear(hidden[:, -1], model.lm_head[group].weight).argmax(dim=-1))
        if group < groups - 2:
            inputs = model.model.codec_embedding[group](codes[-1]).unsqueeze(1)
        begin = end
    return torch.stack(codes, dim=1)


def make_predictor() -> Any:
    """Returns transformers' code predictor with the published shapes."""
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

    model_class = modeling.Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration
    return model_class._from_config(_talker_config().code_predictor_config).eval()


def make_talker_layers() -> Callable[[int], object]:
    """Returns a function run(batch). It runs transformers' talker layers, with the published shapes, for one position
    after CONTEXT earlier ones."""
    import torch
    from transformers import DynamicCache
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeTalkerModel

    config = _talker_config().text_config
    config.num_experts = EXPERTS
    model = Qwen3OmniMoeTalkerModel._from_config(config).eval()
    caches: dict[int, Any] = {}

    def run(batch: int) -> object:
        if batch not in caches:
            caches[batch] = DynamicCache(config=config)
            model(inputs_embeds=torch.randn(batch, CONTEXT, config.hidden_size), past_key_values=caches[batch])
        cache = caches[batch]
        output = model(inputs_embeds=torch.randn(batch, 1, config.hidden_size), past_key_values=cache)
        cache.crop(-1)
        return output

    return run


def _talker_config() -> Any:
    from transformers import Qwen3OmniMoeConfig

    return Qwen3OmniMoeConfig.from_dict(json.loads(CONFIG.read_text())).talker_config
