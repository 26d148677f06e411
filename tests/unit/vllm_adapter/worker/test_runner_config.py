"""The runner's settings: defaults, how they are read, and errors that name the wrong field."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from omni_stage.errors import ConfigurationError
from omni_stage.vllm_adapter.wiring.names import scheduler_cls, worker_cls
from omni_stage.vllm_adapter.worker.config import OmniRunnerConfig


@pytest.mark.parametrize("additional", [{}, None, {"omni_diffusion": {}}, object()])
def test_an_engine_without_settings_captures_nothing(additional: Any) -> None:
    config = OmniRunnerConfig.from_vllm_config(SimpleNamespace(additional_config=additional))
    assert config == OmniRunnerConfig()
    assert not config.capture_rows


def test_settings_are_read_as_the_engine_builder_writes_them() -> None:
    values = {"capture_rows": True, "capture_mrope": True}
    config = OmniRunnerConfig.from_vllm_config(SimpleNamespace(additional_config={"omni": values}))
    assert config == OmniRunnerConfig(capture_rows=True, capture_mrope=True)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        pytest.param([], "", id="no mapping"),
        pytest.param({"capture": "hidden"}, ".capture", id="unknown setting"),
        pytest.param({"capture_rows": "hidden"}, ".capture_rows", id="a kind of rows"),
        pytest.param({"capture_rows": None}, ".capture_rows", id="no answer"),
        pytest.param({"capture_rows": True, "capture_mrope": 1}, ".capture_mrope", id="flag is a number"),
        pytest.param({"capture_mrope": True}, ".capture_mrope", id="positions without rows"),
        pytest.param({"rows_cache_bytes": 1}, ".rows_cache_bytes", id="a cache without rows"),
        pytest.param({"capture_rows": True, "rows_cache_bytes": True}, ".rows_cache_bytes", id="size is a flag"),
        pytest.param({"capture_rows": True, "rows_cache_bytes": -1}, ".rows_cache_bytes", id="size below 0"),
    ],
)
def test_wrong_settings_name_their_field(values: Any, field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        OmniRunnerConfig.from_mapping(values)
    assert caught.value.details.field == f"additional_config.omni{field}"


def test_every_selected_class_exists_under_its_name() -> None:
    names = [worker_cls(kind, device) for kind in ("autoregressive", "diffusion") for device in ("cpu", "cuda")]
    names += [scheduler_cls("autoregressive", flag) for flag in (False, True)] + [scheduler_cls("diffusion", False)]
    from vllm.utils.import_utils import resolve_obj_by_qualname

    for name in names:
        assert resolve_obj_by_qualname(name).__name__ == name.rpartition(".")[2]


@pytest.mark.parametrize(
    "select",
    [
        pytest.param(lambda: worker_cls("autoregressive", "tpu"), id="device"),
        pytest.param(lambda: worker_cls("pooling", "cpu"), id="kind of worker"),
        pytest.param(lambda: scheduler_cls("pooling", False), id="kind of scheduler"),
        pytest.param(lambda: scheduler_cls("diffusion", True), id="asynchronous diffusion"),
    ],
)
def test_unknown_selections_are_refused(select: Any) -> None:
    with pytest.raises(ConfigurationError):
        select()
