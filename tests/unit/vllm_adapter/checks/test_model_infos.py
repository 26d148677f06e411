"""Facts about model classes that vLLM would otherwise compute at start-up are copied from the image to vLLM's cache. A
failed copy never stops a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_stage.vllm_adapter.checks.model_infos import MODEL_INFOS, copy_model_infos


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Returns the cache directory of a container image with two prepared files."""
    folder = tmp_path / "image" / "modelinfos"
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        (folder / f"{name}.json").write_text(name)
    return folder.parent


def test_a_new_cache_gets_them_all(image: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert copy_model_infos({MODEL_INFOS: str(image), "VLLM_CACHE_ROOT": str(cache)}) == 2
    assert (cache / "modelinfos" / "one.json").read_text() == "one"


def test_what_vllm_wrote_stays(image: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "modelinfos"
    cache.mkdir(parents=True)
    (cache / "one.json").write_text("newer")
    assert copy_model_infos({MODEL_INFOS: str(image), "VLLM_CACHE_ROOT": str(cache.parent)}) == 1
    assert (cache / "one.json").read_text() == "newer"


@pytest.mark.parametrize("missing", [MODEL_INFOS, "VLLM_CACHE_ROOT"])
def test_both_directories_must_be_named(missing: str, image: Path, tmp_path: Path) -> None:
    variables = {MODEL_INFOS: str(image), "VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    del variables[missing]
    assert copy_model_infos(variables) == 0
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_no_error(image: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert copy_model_infos({MODEL_INFOS: str(image), "VLLM_CACHE_ROOT": str(tmp_path / "file")}) == 0
