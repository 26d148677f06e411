"""The excerpts in docs/add-a-model.md are in the named files word for word, and its tables list names that exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from omni_proto.pipeline.components import ComponentFacts
from omni_stage.models.manifest import describe
from omni_stage.vllm_adapter import hooks

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "add-a-model.md").read_text(encoding="utf-8")


def test_excerpts_are_in_the_files() -> None:
    excerpts = re.findall(r"```\w+\n# excerpt of (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert len(excerpts) == 3
    for name, text in excerpts:
        assert text in (ROOT / name).read_text(encoding="utf-8"), name


def test_the_dockerfile_installs_into_the_stages_environment() -> None:
    """The page's Dockerfile becomes root, because the stage image's user must not write to /opt/venv. It names the
    Python of /opt/venv, because the image's pip belongs to another Python."""
    (block,) = re.findall(r"```dockerfile\n(.*?)```", PAGE, re.DOTALL)
    *_, become_root, install, become_user = block.splitlines()
    assert become_root == "USER root"
    assert install.startswith("RUN pip --python /opt/venv/bin/python install ")
    assert "-m venv --without-pip /opt/venv\n" in (ROOT / "tools" / "images-venv.sh").read_text(encoding="utf-8")
    assert become_user in (ROOT / "Dockerfile").read_text(encoding="utf-8").split(" AS stage-gpu\n")[1].splitlines()


def test_the_tables_name_what_exists() -> None:
    rows = re.findall(r"^\| (`.+?`) \|", PAGE, re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    arguments = {*ComponentFacts.model_fields, *inspect.signature(describe).parameters} - {"facts"}
    protocols = {name for name in vars(hooks) if getattr(vars(hooks)[name], "_is_protocol", False)} - {"Protocol"}
    assert names <= arguments | protocols
    assert names >= protocols
    assert names >= arguments - {"id", "voices", "sample_rate_hz"}
