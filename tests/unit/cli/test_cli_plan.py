"""`omnipipe plan`: what it prints, and what it refuses. tests/unit/models/sim/test_capacity.py checks the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from omni_cli.commands.plan import PlanError, parse_duration
from omni_cli.main import app
from omni_operator.scaling.decision import StageAsk, StageLoad, decide_scale
from omni_proto.pipeline.types.scaling import ScalingBehavior

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
SIM = SAMPLES / "sim-omni.yaml"
WORK = ("--rate", "20", "--speech", "10s")
OBJECTIVE = ("--objective", "first-audio=300ms")


def plan(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_pods_of_each_stage() -> None:
    status, out, _ = plan(str(SIM), *WORK, *OBJECTIVE)
    assert status == 0
    rows = {line.split()[0]: int(line.split()[1]) for line in out.splitlines()[2:5]}
    assert list(rows) == ["thinker", "talker", "decoder"]
    assert rows["thinker"] == rows["talker"] == 1
    assert 14 <= rows["decoder"] <= 17, "20 requests need 14.8 decoders that never rest"
    assert "at the 95th percentile" in out


def test_scaling_settles_at_the_plan() -> None:
    """With the plan's targetRequests, the operator's decision gives each stage the plan's pods."""
    status, out, _ = plan(str(SIM), "--rate", "60", "--speech", "10s", *OBJECTIVE, "-o", "json")
    assert status == 0
    rows = [row for row in json.loads(out)["stages"] if "targetRequests" in row]
    assert max(row["replicas"] for row in rows) > 1
    asks = [
        StageAsk(row["name"], None, row["replicas"], 1, 100, ScalingBehavior(), target=row["targetRequests"])
        for row in rows
    ]
    loads = {row["name"]: StageLoad(row["requestsPerPod"] * row["replicas"], 0.0, 256) for row in rows}
    decided = decide_scale(asks, loads, {}, now=0.0)
    assert {name: one.replicas for name, one in decided.items()} == {row["name"]: row["replicas"] for row in rows}


def test_a_real_model_needs_a_table_and_counts_gpus() -> None:
    file = str(SAMPLES / "qwen25-omni.yaml")
    status, _, said = plan(file, *WORK, *OBJECTIVE)
    assert status == 1
    assert "give --table: one of qwen2.5-omni-7b-h100" in said
    status, out, _ = plan(file, *WORK, *OBJECTIVE, "--table", "qwen2.5-omni-7b-h100", "-o", "json")
    assert status == 0
    assert [row["gpus"] for row in json.loads(out)["stages"]] == [row["replicas"] for row in json.loads(out)["stages"]]


def test_the_objective_of_the_file_and_a_stage_that_would_scale_too_late(tmp_path: Path) -> None:
    document = yaml.safe_load(SIM.read_text())
    document["spec"]["objectives"] = {"firstAudioSeconds": 0.3, "percentile": 90}
    talker = document["spec"]["stages"][1]
    talker["scaling"] = {"maxReplicas": 8}
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(document))
    status, out, _ = plan(str(tmp_path / "pipeline.yaml"), *WORK)
    assert status == 0
    assert "at the 90th percentile" in out
    assert "stage talker scales to 179.2 requests a pod; set scaling.targetRequests to" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*WORK,), "give --objective first-audio=DURATION, or spec.objectives.firstAudioSeconds"),
        ((*WORK, "--objective", "underruns=0"), "is not first-audio=DURATION"),
        ((*WORK, "--objective", "first-audio=soon"), "'soon' is not a duration"),
        (("--rate", "1", "--speech", "0s", *OBJECTIVE), "'0s' is not a duration"),
        ((*WORK, "--objective", "first-audio=100ms"), "however many pods there are"),
        ((*WORK, *OBJECTIVE, "--table", "none-such"), "holds no table for paced engines"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], said: str) -> None:
    status, _, err = plan(str(SIM), *arguments)
    assert status == 1
    assert said in err


def test_other_pipelines_are_refused() -> None:
    status, _, err = plan(str(SAMPLES / "whisper-llm-voice.yaml"), *WORK, *OBJECTIVE)
    assert status == 1
    assert "plans are for a thinker, a talker and a decoder" in err


@pytest.mark.parametrize(("text", "seconds"), [("300ms", 0.3), ("10s", 10.0), ("1.5", 1.5), ("2m", 120.0)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1h", "61m", "nan", "1e3"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(PlanError):
        parse_duration(text)
