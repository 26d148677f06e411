"""The tokens that asr/whisper may write: equal to transformers' logits processors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from omni_stage.models.asr.rules import CONFIG_KEY, WhisperRules
from omni_stage.models.asr.vocabulary import WhisperTokens

TOKENS = WhisperTokens(
    end=50,
    start=51,
    previous=56,
    no_timestamps=59,
    tasks={"transcribe": 55, "translate": 54},
    languages={"en": 52, "de": 53},
    suppressed=(3, 4, 51),
    first_suppressed=(7, 50),
    latest_first_timestamp=5,
    positions=40,
)
VOCABULARY = 100
PROMPT = [51, 52, 55]
AT = TOKENS.first_timestamp


def build_rules() -> WhisperRules:
    config = SimpleNamespace(additional_config={CONFIG_KEY: TOKENS.as_config()})
    return WhisperRules(config, torch.device("cpu"), False)


def update(
    *added: tuple[int, list[int], list[int]],
    removed: tuple[int, ...] = (),
    moved: tuple[tuple[int, int, MoveDirectionality], ...] = (),
) -> BatchUpdate:
    rows = [(row, SamplingParams(), prompt, output) for row, prompt, output in added]
    return BatchUpdate(batch_size=4, removed=removed, added=rows, moved=moved)


def by_transformers(logits: torch.Tensor, output: list[int], *, timed: bool) -> torch.Tensor:
    """Returns the logits [vocabulary] as generate() changes them for one sequence."""
    generation = GenerationConfig(eos_token_id=TOKENS.end, bos_token_id=TOKENS.end)
    generation.no_timestamps_token_id = TOKENS.no_timestamps
    generation.max_initial_timestamp_index = TOKENS.latest_first_timestamp
    begin = len(PROMPT)
    processors = [
        SuppressTokensAtBeginLogitsProcessor(list(TOKENS.first_suppressed), begin),
        SuppressTokensLogitsProcessor(list(TOKENS.suppressed)),
        *([WhisperTimeStampLogitsProcessor(generation, begin_index=begin)] if timed else []),
    ]
    ids, scores = torch.tensor([[*PROMPT, *output]]), logits[None].clone()
    for processor in processors:
        scores = processor(ids, scores)
    return scores[0]


OUTPUTS = [[], [AT], [AT, 8], [AT, 8, AT + 4], [AT, 8, AT + 4, AT + 4], [AT + 2, 8, 9, AT + 4, AT + 6, 11], [8], [8, 9]]


@pytest.mark.parametrize("output", OUTPUTS, ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_rules_of_timestamps(output: list[int], seed: int) -> None:
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
    rules = build_rules()
    rules.update_state(update((0, PROMPT, output)))
    torch.testing.assert_close(rules.apply(logits.clone())[0], by_transformers(logits[0], output, timed=True))


def test_a_batch_of_unlike_requests() -> None:
    """Each row has its own rules, also after requests have moved and left."""
    logits = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 3
    rules = build_rules()
    untimed, output = [*PROMPT, TOKENS.no_timestamps], [AT, 8]
    rules.update_state(update((0, untimed, []), (1, [TOKENS.start], []), (2, PROMPT, output), (3, PROMPT, [])))
    made = rules.apply(logits.clone())
    torch.testing.assert_close(made[0], by_transformers(logits[0], [], timed=False))
    assert made[1].isfinite().nonzero().flatten().tolist() == [52, 53]
    torch.testing.assert_close(made[1, 52:54], logits[1, 52:54])
    torch.testing.assert_close(made[2], by_transformers(logits[2], output, timed=True))
    torch.testing.assert_close(made[3], by_transformers(logits[3], [], timed=True))

    output.append(9)  # vLLM appends to its own list
    moved = ((2, 0, MoveDirectionality.UNIDIRECTIONAL),)
    rules.update_state(update(removed=(0,), moved=moved))
    made = rules.apply(logits.clone())
    torch.testing.assert_close(made[0], by_transformers(logits[0], output, timed=True))
    torch.testing.assert_close(made[2], logits[2])


def test_a_checkpoint_that_knows_english_only_names_no_language() -> None:
    config = TOKENS.as_config() | {"languages": {}, "tasks": {}}
    assert [TOKENS.language_of(one) for one in (53, 1, None)] == ["de", "", ""]
    assert WhisperTokens.from_config(config).language_of(None) == "en"
    assert WhisperTokens.from_config(config).prompt(None, "transcribe", (), timed=False) == [51, 59]
    rules = WhisperRules(SimpleNamespace(additional_config={CONFIG_KEY: config}), torch.device("cpu"), False)
    rules.update_state(update((0, [TOKENS.start], [])))
    made = rules.apply(torch.zeros(1, VOCABULARY))
    assert made[0, AT : AT + 6].isfinite().all()
    assert not made[0, :AT].isfinite().any()


@pytest.mark.parametrize(
    ("previous", "timed", "prompt"),
    [
        ([], True, [51, 52, 55]),
        ([], False, [51, 52, 55, 59]),
        ([1, 2], False, [56, 1, 2, 51, 52, 55, 59]),
        (list(range(30)), True, [56, *range(11, 30), 51, 52, 55]),
    ],
)
def test_prompts(previous: list[int], timed: bool, prompt: list[int]) -> None:
    """The end of a long prompt is kept: half of the decoder's positions."""
    assert TOKENS.prompt(52, "transcribe", previous, timed=timed) == prompt


def test_tokens_of_a_checkpoint(tmp_path: Path) -> None:
    from omni_stage.models.asr.tiny import write_tiny_checkpoint
    from omni_stage.models.asr.vocabulary import read_tokens
    from omni_stage.models.shared.text.tokenizer import load_tokenizer

    path = write_tiny_checkpoint(tmp_path)
    tokenizer = load_tokenizer(path)
    tokens = read_tokens(path, tokenizer.get_vocab())
    generation = GenerationConfig.from_pretrained(path)
    assert {f"<|{code}|>": number for code, number in tokens.languages.items()} == generation.lang_to_id
    assert dict(tokens.tasks) == generation.task_to_id
    assert (tokens.end, tokens.start) == (generation.eos_token_id, generation.decoder_start_token_id)
    assert tokens.no_timestamps == generation.no_timestamps_token_id
    assert tokens.previous == generation.prev_sot_token_id
    assert list(tokens.suppressed) == generation.suppress_tokens
    assert tokenizer.convert_ids_to_tokens(tokens.first_timestamp + 75) == "<|1.50|>"
