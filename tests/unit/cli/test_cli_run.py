"""What `omnipipe run` does before it starts a stage. tests/processes/cli/test_cli_supervisor.py tests the rest."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_cli.commands.run import STOP_SIGNALS, StopRequest, find_models, first_requests, parse_model_dirs, run_pipeline
from omni_cli.local.pipeline import LocalOptions, compile_local
from omni_proto.pipeline import ModelPathError, load_pipeline

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
PIPELINE = load_pipeline(SAMPLES / "tiny-omni.yaml")


@pytest.fixture
def signals() -> Iterator[None]:
    """Restores the handlers of the stop signals."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("inherited", "stops"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)], ids=["-", "nohup"])
@pytest.mark.usefixtures("signals")
def test_a_closed_terminal_stops_the_run_unless_it_was_started_by_nohup(
    inherited: signal.Handlers, stops: bool
) -> None:
    signal.signal(signal.SIGHUP, inherited)
    stop = StopRequest()
    stop.install()
    signal.raise_signal(signal.SIGHUP)
    assert stop() is stops


@pytest.mark.parametrize(
    ("log_dir", "address_file", "message"),
    [
        (
            "logs",
            "absent/address.json",
            "absent/address.json: No such file or directory; choose another --address-file",
        ),
        ("logs", ".", " is a directory; choose another --address-file"),
        ("file/logs", "address.json", "file/logs: Not a directory; choose another --log-dir"),
        ("taken", "address.json", "taken/thinker.log"),
    ],
)
@pytest.mark.usefixtures("signals")
def test_files_that_cannot_be_written_are_found_before_a_stage_starts(
    log_dir: str, address_file: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "thinker.log").mkdir(parents=True)
    options = LocalOptions("/model", log_dir=tmp_path / log_dir, stage_command=("touch", str(tmp_path / "started")))
    assert run_pipeline(PIPELINE, options, tmp_path / address_file) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "started").exists()
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("values", "shared", "by_stage"),
    [
        ([], None, {}),
        (["/models/omni"], "/models/omni", {}),
        (["talker=/t", "omni", "wav=w=x"], "omni", {"talker": "/t", "wav": "w=x"}),
        (["./a=b"], "./a=b", {}),
        (["/models/a=b"], "/models/a=b", {}),
        (["A=b"], "A=b", {}),
    ],
)
def test_model_dirs_are_directories_or_directories_of_stages(
    values: list[str], shared: str | None, by_stage: dict[str, str]
) -> None:
    assert parse_model_dirs(values) == (shared, by_stage)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["a", "b"], "--model-dir gives two directories for spec.model"),
        (["talker=a", "talker=b"], "--model-dir gives two directories for stage talker"),
        (["talker="], r"--model-dir 'talker=' names no directory; write \[STAGE=\]DIR"),
        ([""], "--model-dir '' names no directory"),
        (["talkr=a"], "--model-dir talkr=DIR names no stage; the stages are thinker, talker, token2wav"),
    ],
)
def test_model_dirs_that_cannot_be_used(values: list[str], words: str) -> None:
    with pytest.raises(ModelPathError, match=words):
        find_models(PIPELINE, values)


def test_each_stage_is_started_with_its_own_checkpoint(tmp_path: Path) -> None:
    for name in ("omni", "talker"):
        (tmp_path / name).mkdir()
    values = [str(tmp_path / "omni"), f"talker={tmp_path / 'talker'}"]
    with pytest.raises(ModelPathError, match=r"omni holds no checkpoint \(config.json is missing\).*--model-dir DIR"):
        find_models(PIPELINE, values)
    (tmp_path / "omni" / "config.json").touch()
    with pytest.raises(ModelPathError, match=r"talker holds no checkpoint .*--model-dir talker=DIR"):
        find_models(PIPELINE, values)
    (tmp_path / "talker" / "config.json").touch()
    configs = compile_local(PIPELINE, find_models(PIPELINE, values), {"thinker": 1, "talker": 2, "token2wav": 3})
    assert [Path(config.model.path).name for config in configs] == ["omni", "talker", "omni"]
    assert [config.is_model_shared for config in configs] == [False, False, True]


@pytest.mark.parametrize(
    ("sample", "asked", "routes"),
    [
        ("whisper-llm-voice", "--audio question.wav --out answer.wav", ["audio/transcriptions", "audio/speech"]),
        ("llm-voice", '--text "Hello" --out answer.wav', ["chat/completions", "audio/speech"]),
        ("generic-llm", '--text "Hello"', ["chat/completions"]),
        ("sim-omni", '--text "Hello" --out answer.wav', ["chat/completions"]),
    ],
)
def test_the_first_requests_are_those_that_the_pipeline_answers(sample: str, asked: str, routes: list[str]) -> None:
    pipeline = load_pipeline(SAMPLES / f"{sample}.yaml")
    generate, curls = first_requests(pipeline, "localhost:1", "http://localhost:2", "ca.crt")
    assert generate == f"omnipipe generate --endpoint localhost:1 --ca ca.crt {asked}"
    assert [curl.split()[1] for curl in curls] == [f"http://localhost:2/v1/{route}" for route in routes]
    assert first_requests(pipeline, "localhost:1", None)[1] == []


def test_a_pipeline_that_only_speaks_is_asked_for_speech() -> None:
    pipeline = load_pipeline(SAMPLES / "llm-voice.yaml")
    pipeline.spec.stages[0].outputs.clear()
    _, [speech] = first_requests(pipeline, "localhost:1", "http://localhost:2")
    assert "/v1/audio/speech" in speech
