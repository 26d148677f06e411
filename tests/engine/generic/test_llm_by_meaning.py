"""A trained model, whose errors a reader sees: facts, how often tokens are sampled, and a KV cache under pressure.

A wrong block of keys and values makes nonsense of a trained model's text, and leaves the noise of random weights noise.
The judge is transformers with the same files. Without the weights of `make demo`, the tests are skipped by name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_stage import OmniLLM
from omni_stage.models.component import ChatMessage, TextPart, UserPrompt
from support.engines.streams import count_preemptions
from support.models.real_weights import find_weights

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

STEP_TOKENS = 40
PIPELINE = """
apiVersion: omnipipeline.io/v1alpha1
kind: OmniPipeline
metadata: {name: text}
spec:
  model: {uri: hf://HuggingFaceTB/SmolLM2-135M-Instruct}
  stages:
  - name: llm
    component: generic/llm
    outputs: [Text]
    engineArgs: {dtype: float32, maxModelLen: 256, maxNumSeqs: 40, maxNumBatchedTokens: 40, kvCacheMemoryMib: 22,
                 enforceEager: true, blockSize: 32, enablePrefixCaching: true}
    defaultSampling: {temperature: 0, maxTokens: 24}
"""
SYSTEM = (
    "You are a helpful teacher at a small school. The children of your class ask you about countries, cities and the "
    "calendar. Answer every question in one short sentence, with the name or the number that was asked for, and "
    "nothing else. Do not tell stories, do not ask questions, and never write more than one sentence."
)
FACTS = {
    "What is the capital of France?": "Paris",
    "What is the capital of Japan?": "Tokyo",
    "What is the capital of Germany?": "Berlin",
    "What is the capital of Italy?": "Rome",
    "What is the capital of Spain?": "Madrid",
    "How many days are in a week?": "7",
}
SEEDS = 200
FALSE_ALARM = 1e-4
"""Probability that a right sampler fails one setting, for seeds that are drawn anew."""


@pytest.fixture(scope="module")
def weights() -> Path:
    return find_weights("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def llm(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OmniLLM]:
    file = tmp_path_factory.mktemp("meaning") / "pipeline.yaml"
    file.write_text(PIPELINE)
    with OmniLLM(file, model_dir=weights) as llm:
        yield llm


@pytest.fixture(scope="module")
def judge(weights: Path) -> Any:
    """transformers' model of the same files, in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32).eval()


def ask(question: str) -> UserPrompt:
    return UserPrompt(messages=[ChatMessage("system", [TextPart(SYSTEM)]), ChatMessage("user", [TextPart(question)])])


def write_greedily(judge: Any, prompt: list[int], tokens: int) -> list[int]:
    """Returns the judge's likeliest tokens, up to and without the end."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        whole = judge.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    end = judge.generation_config.eos_token_id
    return [token for token in whole[0, len(prompt) :].tolist() if token != end]


def test_answers_are_right_and_those_of_transformers_under_pressure(llm: OmniLLM, judge: Any) -> None:
    """Each prompt takes several steps, the prompts share a cached prefix, and too many requests run for the cache."""
    preempted = count_preemptions(llm._llm._stages["llm"].engine)
    alone = [llm.generate([ask(question)])[0] for question in FACTS]
    assert not preempted
    for (question, fact), answer in zip(FACTS.items(), alone, strict=True):
        assert fact in answer.text, (question, answer.text)
        stage = answer.stages["llm"]
        assert len(stage.prompt_token_ids) > 2 * STEP_TOKENS
        expected = write_greedily(judge, stage.prompt_token_ids, 24)
        assert [token for token in stage.token_ids if token != judge.generation_config.eos_token_id] == expected
    # Answers that go on grow beyond the cache.
    longer = {"llm": {"max_tokens": 40, "ignore_eos": True}}
    written = [llm.generate([ask(question)], longer)[0].stages["llm"].token_ids for question in FACTS]
    assert not preempted
    together = llm.generate([ask(question) for question in [*FACTS] * 3], longer)
    assert preempted, "otherwise this test shows nothing"
    assert [answer.stages["llm"].token_ids for answer in together] == written * 3


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        *(
            pytest.param(one, marks=pytest.mark.full)
            for one in ({"temperature": 0.3}, {"temperature": 1.0, "top_k": 3}, {"temperature": 1.0, "top_p": 0.4})
        ),
        {"temperature": 1.5, "top_k": 20, "top_p": 0.6},
    ],
    ids=str,
)
def test_tokens_are_sampled_as_often_as_their_probability_says(
    llm: OmniLLM, judge: Any, sampling: dict[str, float]
) -> None:
    """Counts over many seeds against the exact softmax; the same counts would contradict the model's own softmax."""
    messages = [ChatMessage("user", [TextPart("Name a color that you like.")])]
    prompts = [UserPrompt(messages=messages)] * SEEDS
    chosen: list[Any] = [{"llm": {**sampling, "max_tokens": 1, "seed": seed}} for seed in range(SEEDS)]
    drawn = [result.stages["llm"] for result in llm.generate(prompts, chosen)]
    with torch.no_grad():
        logits = judge(torch.tensor([drawn[0].prompt_token_ids])).logits[0, -1].double()
    expected = exact_probabilities(logits, **sampling)
    counts = Counter(stage.token_ids[0] for stage in drawn)
    assert fit(counts, expected) > FALSE_ALARM
    if sampling != {"temperature": 1.0}:
        assert fit(counts, exact_probabilities(logits, temperature=1.0)) < FALSE_ALARM, "the test has no power"


def exact_probabilities(
    logits: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> dict[int, float]:
    """Returns the probability of each token that may be sampled: temperature, then top_k, then top_p."""
    probabilities = (logits / temperature).softmax(-1)
    ordered, tokens = probabilities.sort(descending=True)
    if top_k:
        ordered = ordered[:top_k] / ordered[:top_k].sum()
    before = ordered.cumsum(0) - ordered
    kept = ordered[before < top_p]
    return dict(zip(tokens[: kept.numel()].tolist(), (kept / kept.sum()).tolist(), strict=True))


def fit(counts: Counter[int], probabilities: dict[int, float]) -> float:
    """Returns the p-value of counts under the probabilities: an exact multinomial test by 100,000 simulations.

    The statistic is the likelihood ratio over the tokens of which five or more are expected, and all others together.
    """
    total = counts.total()
    common = [token for token, share in probabilities.items() if share * total >= 5]
    shares = [probabilities[token] for token in common]
    others = max(0.0, 1.0 - math.fsum(shares))
    if others < 1e-9 and set(counts) - set(common):
        return 0.0
    if not set(counts) <= set(probabilities):
        return 0.0
    found = [*(counts[token] for token in common), total - sum(counts[token] for token in common)]
    odds = np.array([*shares, others]) / math.fsum([*shares, others])
    simulated = np.random.default_rng(0).multinomial(total, odds, 100_000)

    def deviance(rows: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(rows > 0, rows * np.log(rows / (total * odds)), 0.0)
        result: np.ndarray = 2 * parts.sum(-1)
        return result

    return float((1 + (deviance(simulated) >= deviance(np.array(found)) - 1e-9).sum()) / (1 + len(simulated)))
