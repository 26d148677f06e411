"""The tables and ratios that `make bench CASE=peer` computes from our answers and vllm-omni's."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.harness.verdict import judge
from benchmarks.peer.environment import CONSTRAINTS, PLUGIN, REQUIREMENTS, environment
from benchmarks.peer.figures import (
    BOUNDS,
    LIMITS,
    OURS,
    Answer,
    Outcome,
    Reference,
    Round,
    Start,
    count_equal,
    deployment,
    find_best,
    find_ratios,
    job_rows,
    parse_references,
    parse_round,
    start_rows,
)

REFERENCES = [Reference((1, 2), (3,), (7, 7, 8), 30), Reference((1,), (4,), (9, 9, 9), 30)]


def made(done: float, first: float | None, *, codes: list[list[int]] | None = None, samples: int = 30) -> Round:
    """Returns a round in which the first prompt is answered after `done` / 2 seconds, and the second after `done`."""
    answers = [Answer(done / 2, first, samples, (3,)), Answer(done, first, samples, (0,))]
    return Round(answers, [[7, 7, 8], [9, 9, 9]] if codes is None else codes, cpu_s=done * 2)


def outcomes(**seconds: float) -> dict[tuple[str, int], Outcome]:
    """Returns each side's outcome with two concurrent requests.

    `seconds`: each side's time until both requests are answered, in the order (OURS, *LIMITS) and under any names.
    """
    sides = dict(zip((OURS, *LIMITS), seconds.values(), strict=True))
    return {(side, 2): Outcome([made(done, done / 4)]) for side, done in sides.items()}


def starts() -> dict[str, Start]:
    return {side: Start(12.0 if side == OURS else 40.0, 20.0, 3000.4, 0.004) for side in (OURS, *LIMITS)}


def test_each_that_was_made_counts_once() -> None:
    """A generated sequence matches at most one expected sequence. The order of the sequences does not matter."""
    expected = [each.codes for each in REFERENCES]
    assert count_equal([[9, 9, 9], [7, 7, 8]], expected) == 2, "the order of the sequences does not matter"
    assert count_equal([[9, 9, 9], [9, 9, 9]], expected) == 1
    assert count_equal([[7, 7, 8, 9, 9, 9]], expected) == 0, "two sequences joined into one match nothing"
    assert count_equal([], expected) == 0


def test_a_line_of_the_engine() -> None:
    """parse_round reads a line that benchmarks/peer/engine.py prints."""
    line = {"answers": [{"done": 1.5, "first_audio": None, "samples": 0, "text": [3]}], "codes": [[7]]}
    assert parse_round(line, 2.0) == Round([Answer(1.5, None, 0, (3,))], [[7]], 2.0)


def test_the_reference_must_not_end_early() -> None:
    line = {"prompt": [1, 2], "text": [3], "codes": [7, 7, 8], "samples": 30}
    assert parse_references([line], 3) == REFERENCES[:1]
    with pytest.raises(ValueError, match="made 3 of 4 codec tokens of prompt 0"):
        parse_references([line], 4)


def test_figures_of_a_round() -> None:
    assert made(2.0, 0.5).figures() == {"all done": 2.0, "job": 1.5, "first audio": 0.5, "processor time a job": 2.0}
    assert made(2.0, None).figures()["first audio"] == 1.5, "without audio, the job's end counts as first audio"


def test_a_row_says_what_is_right() -> None:
    """A row counts separately how many answers have transformers' codec tokens, text and audio length."""
    rounds = {
        (OURS, 2): Outcome([made(2.0, 0.5), made(4.0, 0.5)]),
        ("vllm-omni 8/8/8", 2): Outcome([made(2.0, None, codes=[[7, 7, 8, 9, 9, 9]], samples=60)]),
    }
    ours, theirs = job_rows(rounds, REFERENCES)
    assert (ours["side"], ours["makespan_s"], ours["job_s_p50"], ours["cpu_s_per_job"]) == (OURS, 3.0, 2.25, 3.0)
    assert ours["codec_tokens_as_transformers"] == "4 of 4"
    assert ours["text_as_transformers"] == "2 of 4"
    assert ours["audio_of_its_length"] == "4 of 4"
    assert theirs["codec_tokens_as_transformers"] == theirs["audio_of_its_length"] == "0 of 2"
    assert theirs["first_audio_s_p50"] is None


def test_the_best_limits_are_those_of_the_figure() -> None:
    """Of vllm-omni's limits on concurrent requests per stage, the best are those that give the lowest figure."""
    sides = outcomes(ours=1, equal=4, one_voice=2, shipped=8)
    assert find_best(sides, "all done", 2) == "vllm-omni 8/8/1"


def test_ratios_at_equal_and_at_best_limits() -> None:
    ratios = {ratio.name: ratio for ratio in find_ratios(outcomes(ours=1, equal=4, a=2, b=8), starts(), REFERENCES)}
    equal, best = (ratios[f"all done x vllm-omni at {limits} limits, 2 at once"] for limits in ("equal", "its best"))
    assert (equal.value, best.value) == (0.25, 0.5)
    assert best.at_most == BOUNDS["all done"]
    assert best.met is True
    assert ratios["start x vllm-omni"].value == 0.3
    assert ratios["our codec tokens as transformers'"].value == 1.0
    assert len(ratios) == 2 * len(BOUNDS) + 2


def test_only_the_most_at_once_have_bounds() -> None:
    """Only the ratios for the largest number of concurrent requests have bounds."""
    sides = outcomes(ours=1, equal=4, a=2, b=8)
    one = {(side, 1): outcome for (side, _), outcome in sides.items()}
    ratios = find_ratios({**one, **sides}, starts(), REFERENCES)
    assert {ratio.name for ratio in ratios if ratio.at_most is None and "1 at once" in ratio.name}
    assert all(ratio.at_most is not None for ratio in ratios if "2 at once" in ratio.name)
    assert [ratio.name for ratio in ratios if not ratio.lower_is_better] == ["our codec tokens as transformers'"]


def test_our_wrong_codec_tokens_fail_the_run() -> None:
    sides = outcomes(ours=1, equal=4, a=2, b=8)
    sides[OURS, 2].rounds.append(made(1, 0.1, codes=[[7, 7, 8], [0]]))
    sides = {key: Outcome(outcome.rounds * (1 if key[0] == OURS else 2)) for key, outcome in sides.items()}
    verdicts = judge(find_ratios(sides, starts(), REFERENCES), {})
    assert [one.ratio.name for one in verdicts if one.is_broken] == ["our codec tokens as transformers'"]
    assert verdicts[-1].ratio.value == 0.75


def test_starts() -> None:
    row = start_rows(starts())[0]
    assert row == {"side": OURS, "ready_s": 12.0, "cpu_s": 20.0, "memory_mib": 3000, "idle_cores": 0.0}


def test_limits_by_stage() -> None:
    """The three limits become max_num_seqs of thinker, talker and code2wav."""
    stages = deployment((8, 8, 1))["stages"]
    assert [stage["max_num_seqs"] for stage in stages] == [8, 8, 1]
    assert [stage["stage_id"] for stage in stages] == [0, 1, 2]


def test_the_peer_is_pinned_and_sees_the_plugin(tmp_path: Path) -> None:
    pins = CONSTRAINTS.read_text().splitlines()
    assert set(REQUIREMENTS) <= set(pins)
    assert all("==" in pin and "/" not in pin for pin in pins), "each line pins a version, not a URL"
    assert environment(tmp_path / "codes")["PYTHONPATH"] == str(PLUGIN)
    entry = (PLUGIN / "peer_cpu-1.dist-info" / "entry_points.txt").read_text()
    assert "[vllm_omni.platform_plugins]\npeer_cpu = peer_cpu:plugin" in entry
