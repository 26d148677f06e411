"""Runs `omnipipe run` with fake stages: run_fake_pipeline.py PIPELINE DIRECTORY BEHAVIOURS GRACE_S [PORT [HTTP]]."""

from __future__ import annotations

import sys
from pathlib import Path

from omni_cli.commands.run import run_pipeline
from omni_cli.local.pipeline import LocalOptions
from omni_proto.pipeline import load_pipeline

if __name__ == "__main__":
    pipeline_file, directory, behaviours, grace_s = sys.argv[1:5]
    options = LocalOptions(
        model_path=directory,
        port=int(sys.argv[5]) if len(sys.argv) > 5 else 0,
        http_port=int(sys.argv[6]) if len(sys.argv) > 6 and int(sys.argv[6]) >= 0 else None,
        log_dir=Path(directory) / "logs",
        grace_s=float(grace_s),
        stage_command=(sys.executable, str(Path(__file__).with_name("fake_stage.py")), behaviours, directory),
    )
    sys.exit(run_pipeline(load_pipeline(Path(pipeline_file)), options, Path(directory) / "address.json"))
