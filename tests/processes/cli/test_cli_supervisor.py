"""How `omnipipe run` starts, watches and stops its stages, tested with fake stage servers and real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from omni_cli.commands.demo import tiny_model_command
from omni_cli.local.guard import list_tree
from omni_cli.local.pipeline import STAGE_COMMAND, gateway_command
from omni_cli.local.ports import pick_ports
from omni_cli.local.processes import SessionGuard, StageFiles, StageProcess
from omni_proto.pod_contract import Termination, TerminationReason
from support.processes.polling import PATIENCE_S, wait_until

HERE = Path(__file__).parent
PIPELINE = HERE.parents[2] / "manifests" / "samples" / "tiny-omni.yaml"
STAGES = ("thinker", "talker", "token2wav")


class Run:
    """An `omnipipe run` in its own process."""

    def __init__(
        self,
        directory: Path,
        pipeline: Path = PIPELINE,
        *,
        grace_s: float = 30.0,
        port: int = 0,
        http: int = -1,
        **behaviours: str,
    ) -> None:
        self.directory = directory
        command = [str(HERE / "run_fake_pipeline.py"), str(pipeline), str(directory), json.dumps(behaviours)]
        self.process = subprocess.Popen(
            [sys.executable, *command, str(grace_s), str(port), str(http)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_ready(self) -> dict[str, object]:
        wait_until(lambda: (self.directory / "address.json").exists() or self.process.poll() is not None)
        return dict(json.loads((self.directory / "address.json").read_text()))

    def pids(self) -> list[int]:
        """Returns the process ids of the stage servers and their children."""
        files = [self.directory / f"{stage}.pids" for stage in STAGES]
        return [int(pid) for file in files if file.exists() for pid in file.read_text().split()]

    def sessions(self) -> list[int]:
        return [int((self.directory / f"{stage}.pids").read_text().split()[0]) for stage in STAGES]

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(**options: object) -> Run:
        runs.append(Run(tmp_path, **options))  # type: ignore[arg-type]
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()
        wait_until(lambda run=run: not any(is_alive(pid) for pid in run.pids()))  # type: ignore[misc]


@pytest.fixture(autouse=True)
def _heed_hangups() -> Iterator[None]:
    """Resets SIGHUP, which the tests' own process may ignore under nohup. `omnipipe run` would inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_stop_signal_ends_everything_and_exits_zero(launch: Callable[..., Run], number: signal.Signals) -> None:
    run = launch()
    address = run.wait_ready()
    assert sorted(address["stages"]) == sorted(STAGES)  # type: ignore[call-overload]
    pids = run.pids()
    assert len(pids) == 6
    run.process.send_signal(number)
    status, out, err = run.finish()
    assert status == 0
    assert out.strip() == address["endpoint"]
    for stage in STAGES:
        assert f"{stage}: ready after" in err
    assert not any(is_alive(pid) for pid in pids)


def test_stages_that_share_a_gpu_find_the_mps_daemon(
    launch: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables of the shell and those of the resource reach the processes; without a daemon none is started."""
    pipeline = yaml.safe_load((PIPELINE.parent / "qwen25-omni-one-gpu.yaml").read_text())
    pipeline["spec"]["stages"][1]["env"] = [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "40"}]
    (tmp_path / "shared.yaml").write_text(yaml.safe_dump(pipeline))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    status, _, err = launch(pipeline=tmp_path / "shared.yaml").finish()
    assert status == 1
    assert "no MPS daemon runs there" in err
    assert not list(tmp_path.glob("*.pids"))
    (tmp_path / "control").touch()
    run = launch(pipeline=tmp_path / "shared.yaml")
    run.wait_ready()
    run.process.send_signal(signal.SIGTERM)
    assert run.finish()[0] == 0
    found = {stage: json.loads((tmp_path / f"{stage}.environment").read_text()) for stage in STAGES}
    assert {one["CUDA_MPS_PIPE_DIRECTORY"] for one in found.values()} == {str(tmp_path)}
    assert [stage for stage in STAGES if "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in found[stage]] == ["talker"]


def test_stages_lead_sessions_of_their_own(launch: Callable[..., Run]) -> None:
    run = launch()
    run.wait_ready()
    for session in run.sessions():
        assert os.getsid(session) == session
        assert len(list_tree(session)) == 2


def test_sigkill_of_omnipipe_leaves_no_process(launch: Callable[..., Run]) -> None:
    run = launch()
    run.wait_ready()
    pids = run.pids()
    run.process.kill()
    run.process.communicate(timeout=PATIENCE_S)
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_sigkill_while_stages_load_leaves_no_process(launch: Callable[..., Run]) -> None:
    run = launch(thinker="loading", talker="loading", token2wav="loading")
    wait_until(lambda: len(run.pids()) == 6)
    pids = run.pids()
    run.process.kill()
    run.process.communicate(timeout=PATIENCE_S)
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_stop_while_stages_load(launch: Callable[..., Run]) -> None:
    run = launch(talker="loading")
    wait_until(lambda: len(run.pids()) == 6)
    run.process.send_signal(signal.SIGINT)
    status, out, _ = run.finish()
    assert (status, out) == (0, "")
    assert not any(is_alive(pid) for pid in run.pids())


def test_refused_configuration_names_stage_reason_and_last_log_lines(launch: Callable[..., Run]) -> None:
    run = launch(talker="refuse")
    status, out, err = run.finish()
    assert (status, out) == (1, "")
    assert "stage talker ended with exit code 78: InvalidConfiguration (model.path) weights are missing" in err
    assert "talker.log" in err
    assert "| the last words of the stage" in err
    assert not any(is_alive(pid) for pid in run.pids())


def test_no_process_imports_modules_of_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("omni_stage", "omni_gateway", "omni_cli"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the current directory')")
    monkeypatch.chdir(tmp_path)
    for command in (STAGE_COMMAND, gateway_command("omni", "127.0.0.1:1", 0), tiny_model_command(tmp_path, "tones")):
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr
    guard = SessionGuard()
    guard.close()
    assert guard._process.returncode == 0


@pytest.mark.parametrize("reason", list(TerminationReason))
def test_what_a_stage_leaves_for_kubelet_is_reported(reason: TerminationReason, tmp_path: Path) -> None:
    files = StageFiles(*(tmp_path / name for name in ("config", "address", "log", "termination")))
    files.termination.write_text(Termination(reason, "said so", "model.path").encode())
    guard = SessionGuard()
    stage = StageProcess("talker", ["sh", "-c", "exit 70"], files, guard)
    wait_until(lambda: stage.poll() is not None)
    assert stage.describe_end() == f"ended with exit code 70: {reason} (model.path) said so"
    stage.finish()
    guard.close()


def test_death_of_a_ready_stage_names_it_and_stops_the_others(launch: Callable[..., Run]) -> None:
    run = launch(token2wav="die")
    run.wait_ready()
    (run.directory / "die").touch()
    status, _, err = run.finish()
    assert status == 1
    assert "stage token2wav was killed by SIGKILL" in err
    assert "| the last words of the stage" in err
    assert not any(is_alive(pid) for pid in run.pids())


def test_a_stage_whose_engine_hangs_is_named_and_the_run_ends(launch: Callable[..., Run]) -> None:
    run = launch(talker="hang")
    run.wait_ready()
    (run.directory / "hang").touch()
    code, _, err = run.finish()
    assert code == 1
    assert "stage talker cannot continue: StepTimeout no step for 30 s" in err
    assert "the engine makes no step" in err, "the last lines of its log"
    assert not any(is_alive(pid) for pid in run.pids())


def test_stage_that_ignores_sigterm_is_killed_after_the_grace(launch: Callable[..., Run]) -> None:
    run = launch(grace_s=1, talker="deaf")
    run.wait_ready()
    run.process.send_signal(signal.SIGTERM)
    status, _, err = run.finish()
    assert status == 0
    assert "killed after 1 s: talker" in err
    assert not any(is_alive(pid) for pid in run.pids())


def test_engine_left_behind_by_a_stage_is_ended(launch: Callable[..., Run]) -> None:
    run = launch(thinker="orphan")
    run.wait_ready()
    run.process.send_signal(signal.SIGTERM)
    status, _, _ = run.finish()
    assert status == 0
    assert not any(is_alive(pid) for pid in run.pids())


def test_engine_in_a_session_of_its_own_left_behind_is_ended(launch: Callable[..., Run]) -> None:
    run = launch(thinker="orphan-session")
    run.wait_ready()
    server, engine = (int(pid) for pid in (run.directory / "thinker.pids").read_text().split())
    assert os.getsid(engine) != os.getsid(server)
    run.process.send_signal(signal.SIGTERM)
    status, _, _ = run.finish()
    assert status == 0
    assert not any(is_alive(pid) for pid in run.pids())


def test_second_stop_signal_does_not_wait(launch: Callable[..., Run]) -> None:
    run = launch(grace_s=1000, talker="deaf")
    run.wait_ready()
    run.process.send_signal(signal.SIGINT)
    wait_until(lambda: not list_tree(run.sessions()[0]))
    run.process.send_signal(signal.SIGINT)
    status, _, _ = run.finish()
    assert status == 130
    wait_until(lambda: not any(is_alive(pid) for pid in run.pids()))


def test_port_taken_meanwhile_starts_again_on_others(launch: Callable[..., Run]) -> None:
    run = launch(token2wav="clash")
    run.wait_ready()
    assert (run.directory / "token2wav.attempts").read_text() == "xx"
    assert (run.directory / "thinker.attempts").read_text() in ("x", "xx")


def test_port_asked_for_but_taken(launch: Callable[..., Run]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, _, err = launch(port=port).finish()
    assert status == 1
    assert f"port {port} is taken; choose another with --port" in err


@pytest.mark.parametrize("host", ["127.0.0.1", ""], ids=["loopback", "every address"])
def test_a_taken_port_of_the_gateway_is_refused_before_any_stage_starts(launch: Callable[..., Run], host: str) -> None:
    with socket.create_server((host, 0)) as other:
        port = other.getsockname()[1]
        run = launch(http=port)
        status, _, err = run.finish()
    assert status == 1
    assert f"port {port} is taken; choose another with --http" in err
    assert not list(run.directory.glob("*.attempts"))


def test_one_port_for_both_is_refused(launch: Callable[..., Run]) -> None:
    (port,) = pick_ports(1)
    status, _, err = launch(port=port, http=port).finish()
    assert status == 1
    assert f"--port and --http are both {port}" in err


def test_port_asked_for_is_the_entry(launch: Callable[..., Run]) -> None:
    (port,) = pick_ports(1)
    assert launch(port=port).wait_ready()["endpoint"] == f"127.0.0.1:{port}"
