"""A fake stage server for tests of the supervisor: it listens, and starts a child process in place of an engine.

Usage: fake_stage.py BEHAVIOURS DIRECTORY --config FILE --address-file FILE
BEHAVIOURS is a JSON object that maps a stage to one of these:

ok               becomes ready, and ends at SIGTERM (the default)
refuse           ends immediately with BAD_CONFIGURATION
die              kills itself when the file DIRECTORY/die exists
deaf             ignores SIGTERM
orphan           leaves its child running when it ends
orphan-session   like orphan, with the child in its own session
loading          never becomes ready
hang             reports a step timeout when the file DIRECTORY/hang exists
clash            finds its port taken at the first attempt
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import yaml

from omni_proto.pod_contract import TERMINATION_LOG_VARIABLE, ExitCode, Termination, TerminationReason


def main() -> None:
    behaviours, directory = json.loads(sys.argv[1]), Path(sys.argv[2])
    # Not load_stage_config, whose import takes a third of a second of CPU in each of fifty processes.
    config = yaml.safe_load(Path(sys.argv[4]).read_text())
    stage, listen = config["stage"], config["listen"]
    address_file = Path(sys.argv[6])
    behaviour = behaviours.get(stage, "ok")
    sys.stderr.write(f"fake stage {stage} begins\n")
    if behaviour == "refuse":
        Path(os.environ[TERMINATION_LOG_VARIABLE]).write_text(
            Termination(TerminationReason.INVALID_CONFIGURATION, "weights are missing", "model.path").encode()
        )
        sys.stderr.write("the last words of the stage\n")
        sys.exit(ExitCode.BAD_CONFIGURATION)

    (directory / f"{stage}.environment").write_text(json.dumps(dict(os.environ)))
    listener = socket.create_server((listen["host"], listen["grpcPort"]))
    attempts = directory / f"{stage}.attempts"
    attempts.write_text(attempts.read_text() + "x" if attempts.exists() else "x")
    if behaviour == "clash" and attempts.read_text() == "x":
        # At the first attempt another program has the port: a child that inherits the listening socket.
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[listener.fileno()])
        sys.exit(1)

    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=behaviour == "orphan-session"
    )
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: None if behaviour == "deaf" else stopping.append(number))
    (directory / f"{stage}.pids").write_text(f"{os.getpid()} {child.pid}")
    if behaviour != "loading":
        partial = address_file.with_suffix(".partial")
        partial.write_text(json.dumps({"grpc": listener.getsockname()[1], "health": 1, "metrics": 2}))
        partial.replace(address_file)
    while not stopping:
        if behaviour == "die" and (directory / "die").exists():
            sys.stderr.write("the last words of the stage\n")
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "hang" and (directory / "hang").exists():
            sys.stderr.write("the engine makes no step\n")
            Path(os.environ[TERMINATION_LOG_VARIABLE]).write_text(
                Termination(TerminationReason.STEP_TIMEOUT, "no step for 30 s").encode()
            )
            behaviour = "ok"
        time.sleep(0.02)
    if not behaviour.startswith("orphan"):
        child.kill()
        child.wait()
    sys.exit(0)


if __name__ == "__main__":
    main()
