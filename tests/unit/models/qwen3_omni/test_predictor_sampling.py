"""The code predictor samples with transformers' top-k and top-p filters and their values, but its own random numbers.

The random numbers depend only on seed, position and group.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from benchmarks.gpu.qwen3_omni.predictor import load as load_published_predictor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Qwen3OmniMoeConfig, TopKLogitsWarper, TopPLogitsWarper
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration,
    Qwen3OmniMoeTalkerForConditionalGeneration,
)

from omni_stage.models.qwen3_omni.talker.predictor import (
    TOP_K,
    TOP_P,
    CodePredictor,
    GraphedPredictor,
    pick_tokens,
    uniform,
)
from omni_stage.models.qwen3_omni.tiny.shapes import TinyShape, config_dict
from omni_stage.models.shared.graphs import Captured, TensorFunction, graph_sizes
from support.models.kernels import Launches

DRAWS = 4000
SHAPE = TinyShape(predictor_layers=3, groups=6, talker_kv_heads=1)


def make_logits(seed: int, width: int, scale: float) -> torch.Tensor:
    return scale * torch.randn(1, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("seed", "width", "scale"), [(0, 2048, 3.0), (1, 2048, 1.0), (2, 96, 0.5), (3, 40, 2.0)])
def test_tokens_are_drawn_as_transformers_filters_them(seed: int, width: int, scale: float) -> None:
    """With evenly spread random numbers, each token's frequency is its probability after transformers' filters."""
    logits = make_logits(seed, width, scale)
    filtered = TopPLogitsWarper(top_p=0.8)(None, TopKLogitsWarper(top_k=50)(None, logits.clone()))
    expected = filtered.softmax(dim=-1)[0]
    chance = (torch.arange(DRAWS) + 0.5) / DRAWS
    drawn = torch.bincount(pick_tokens(logits.expand(DRAWS, -1), chance), minlength=width) / DRAWS
    assert drawn[expected == 0].sum() == 0, "a token that the filters drop was picked"
    assert (drawn - expected).abs().max() <= 1 / DRAWS + 1e-6, "a token's frequency differs from its probability"


def test_the_edges_of_chance_are_inside() -> None:
    """The smallest and the largest random number pick a token that can be sampled."""
    logits = make_logits(5, 300, 2.0).expand(2, -1)
    first, last = pick_tokens(logits, torch.tensor([0.0, 1.0 - 2**-24])).tolist()
    assert first == int(logits[0].argmax())
    assert logits[0, last] > -math.inf
    sure = torch.full((1, 64), -math.inf)
    sure[0, 7] = 0.0
    assert pick_tokens(sure, torch.tensor([0.999])).tolist() == [7]


def test_the_values_are_those_that_transformers_passes() -> None:
    """transformers' talker gives its code predictor TOP_K and TOP_P, but no temperature and no repetition penalty."""
    talker = make_talker(seed=0)
    passed: list[dict[str, Any]] = []

    class Asked(Exception):
        pass

    def ask(**values: Any) -> None:
        passed.append(values)
        raise Asked

    talker.code_predictor.generation_config.do_sample = True
    talker.code_predictor.generate = ask
    hidden = torch.zeros(1, 2, SHAPE.talker_hidden_size)
    with pytest.raises(Asked):
        talker.prepare_inputs_for_generation(
            torch.zeros(1, 2, dtype=torch.int64),
            hidden_states=((hidden,),),
            inputs_embeds=None,
            attention_mask=torch.ones(1, 2),
            past_key_values=None,
            cache_position=torch.tensor([1]),
            is_first_iteration=False,
        )
    (values,) = passed
    assert (values["top_k"], values["top_p"]) == (TOP_K, TOP_P)
    assert not {"temperature", "repetition_penalty"} & values.keys()
    defaults = talker.code_predictor.generation_config
    assert defaults.temperature in (None, 1.0)
    assert defaults.repetition_penalty in (None, 1.0)


def test_greedy_is_what_transformers_generates() -> None:
    talker = make_talker(seed=1)
    hidden, first = make_frames(9)
    expected = talker.code_predictor.generate(
        inputs_embeds=torch.stack([hidden, first], dim=1), max_new_tokens=SHAPE.groups - 1, do_sample=False
    )
    assert predict(talker, hidden, first, greedy=True).tolist() == expected.tolist()


def test_a_frame_is_the_same_alone_and_in_company() -> None:
    """Greedy and sampled frames can share a step. A frame's codes do not depend on the other frames."""
    talker = make_talker(seed=2)
    hidden, first = make_frames(8)
    seeds = torch.tensor([0, 1, 2, 3, 2**62, 2**62 + 1, 7, 7])
    positions = torch.tensor([5, 5, 900, 5, 5, 5, 11, 12])
    greedy = torch.tensor([False, True] * 4)
    together = predict(talker, hidden, first, greedy=greedy, seeds=seeds, positions=positions)
    for row in range(8):
        one = slice(row, row + 1)
        values = {"greedy": greedy[one], "seeds": seeds[one], "positions": positions[one]}
        assert predict(talker, hidden[one], first[one], **values).tolist() == together[one].tolist()
    again = predict(talker, hidden, first, greedy=greedy, seeds=seeds, positions=positions)
    assert again.tolist() == together.tolist(), "a prediction must leave no state behind"


def test_another_seed_or_position_says_something_else() -> None:
    talker = make_talker(seed=3)
    hidden, first = (frames.expand(64, -1) for frames in make_frames(1))
    numbers, still = torch.arange(64), torch.zeros(64, dtype=torch.int64)
    by_seed = predict(talker, hidden, first, seeds=numbers, positions=still)
    by_position = predict(talker, hidden, first, seeds=still, positions=numbers)
    for codes in (by_seed, by_position):
        assert len(set(map(tuple, codes.tolist()))) > 48
    assert by_seed[0].tolist() == by_position[0].tolist()


def test_chances_are_spread_evenly_and_independent() -> None:
    """Numbers are uniform (chi squared, 64 bins) and uncorrelated with those of the next seed, position and group."""
    for seeds, positions in (
        (torch.arange(1 << 16), torch.full((1 << 16,), 3)),
        (torch.full((1 << 16,), 2**62 + 12345), torch.arange(1 << 16)),
    ):
        values, next_group = uniform(seeds, positions, 6)[:, 4:].unbind(1)
        assert values.dtype == torch.float32
        assert 0.0 <= float(values.min()) <= float(values.max()) < 1.0
        counts = torch.histc(values, 64, 0.0, 1.0)
        chi = float(((counts - 1024) ** 2 / 1024).sum())
        assert 25 < chi < 125, "with 63 degrees of freedom, the probability of this is below 1e-4"
        others = uniform(seeds + 1, positions, 5)[:, 4], uniform(seeds, positions + 1, 5)[:, 4]
        for other in (next_group, *others):
            assert abs(float(torch.corrcoef(torch.stack([values, other]))[0, 1])) < 0.02


def make_talker(seed: int) -> Any:
    """Returns transformers' talker in a small shape, with random weights that leave several likely tokens."""
    roles = {"system": 300, "user": 301, "assistant": 302}
    config = Qwen3OmniMoeConfig(**config_dict(SHAPE, roles)).talker_config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        talker = Qwen3OmniMoeTalkerForConditionalGeneration(config).float().eval()
        predictor: Qwen3OmniMoeTalkerCodePredictorModelForConditionalGeneration = talker.code_predictor
        with torch.no_grad():
            for name, parameter in predictor.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0.0, 2.0 if "lm_head" in name else 1.0)
                    parameter.div_(parameter.shape[-1] ** 0.5)
    return talker


def make_frames(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    hidden, first = torch.randn(2, count, SHAPE.talker_hidden_size, generator=generator)
    return hidden, first


@torch.no_grad()
def predict(talker: Any, hidden: torch.Tensor, first: torch.Tensor, **values: Any) -> torch.Tensor:
    count = hidden.shape[0]
    greedy = values.get("greedy", False)
    return CodePredictor(talker.code_predictor).predict(
        hidden,
        first,
        greedy=greedy if isinstance(greedy, torch.Tensor) else torch.full((count,), bool(greedy)),
        seeds=values.get("seeds", torch.arange(count)),
        positions=values.get("positions", torch.arange(count)),
    )


def test_a_frame_from_a_graph_is_the_frame_itself() -> None:
    """A batch of frames is padded to a captured size, and each frame gets the same codes as without a graph.

    `record` replaces a CUDA graph: its replay reads and writes fixed tensors.
    """
    replayed: list[int] = []

    def record(function: TensorFunction, inputs: tuple[torch.Tensor, ...]) -> Captured:
        output = function(*inputs).clone()

        def replay() -> None:
            replayed.append(inputs[0].shape[0])
            output.copy_(function(*inputs))

        return Captured(inputs, output, replay)

    talker = make_talker(0)
    predictor = CodePredictor(talker.code_predictor)
    graphed = GraphedPredictor(predictor, record, maximum=6)
    with torch.no_grad():
        graphed.warm_up(torch.empty(0), SHAPE.talker_hidden_size)
        replayed.clear()
        for count in (1, 2, 3, 5, 6):
            hidden, first = make_frames(count)
            inputs = (hidden, first, torch.arange(count) % 2 == 0, torch.arange(count), torch.arange(count) + 9)
            assert torch.equal(graphed.predict(*inputs), predictor.predict(*inputs))
    assert replayed == [1, 2, 4, 6, 6]
    assert (graph_sizes(1), graph_sizes(8), graph_sizes(40)) == ((1,), (1, 2, 4, 8), (1, 2, 4, 8, 16, 24, 32, 40))


def test_a_frame_of_the_published_model_takes_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph can hold it, and it launches at most so many kernels: transformers' modules launch 5,700, and then a
    frame took 14 ms as a CUDA graph on an H200.

    Fake CUDA tensors: nothing runs, and no GPU is needed. Attention is one kernel on a GPU.
    """
    attended = []

    def attend(query: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        attended.append(1)
        return torch.empty_like(query)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        predictor = CodePredictor(load_published_predictor("cuda"))
        hidden = torch.empty(8, predictor.hidden_size, device="cuda", dtype=torch.bfloat16)
        numbers = torch.empty(8, device="cuda", dtype=torch.int64)
        with Launches() as launches:
            predictor.predict(hidden, hidden, numbers.bool(), numbers, numbers)
    assert launches.refused == []
    assert len(attended) + launches.count <= 1530, launches.kernels


def test_the_models_own_parameters_stay_usable() -> None:
    """Weights may be loaded into the model after the predictor has joined them, as vLLM does."""
    talker, loaded = make_talker(0), make_talker(1)
    predictor = CodePredictor(talker.code_predictor)
    for mine, theirs in zip(talker.parameters(), loaded.parameters(), strict=True):
        mine.data.copy_(theirs)
    hidden, first = make_frames(3)
    inputs = (hidden, first, torch.ones(3, dtype=torch.bool), torch.arange(3), torch.arange(3))
    with torch.no_grad():
        assert torch.equal(predictor.predict(*inputs), CodePredictor(loaded.code_predictor).predict(*inputs))
        codes = torch.randint(64, (3, predictor.groups - 1), generator=torch.Generator().manual_seed(0))
        tables = loaded.code_predictor.model.codec_embedding
        rows = torch.stack([table(column) for table, column in zip(tables, codes.T, strict=True)]).sum(0)
        assert torch.allclose(predictor.embed(codes), rows, atol=1e-6)
