"""The pipelines in docs/pipelines.md are valid, and there is one for each common need."""

from __future__ import annotations

import pytest

from omni_proto.pipeline.read.offline import parse_checked
from support.docs.doc_examples import EXAMPLES, ROOT, pipelines_in


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_valid(name: str) -> None:
    assert parse_checked(EXAMPLES[name], source=name).spec.stages


def test_the_page_has_every_example() -> None:
    names = {name.removeprefix("pipelines-") for name in pipelines_in(ROOT / "docs" / "pipelines.md")}
    assert names >= {
        *("minimal", "qwen25-omni", "sized", "from-volume", "gated", "two-talkers"),
        *("quantized", "blue-green", "recreate", "idle", "placed", "encrypted"),
    }


def test_the_refusal_that_the_page_shows_is_the_real_one() -> None:
    page = " ".join((ROOT / "docs" / "pipelines.md").read_text().split())
    text = EXAMPLES["pipelines-qwen25-omni"].replace("from: thinker", "from: tinker")
    with pytest.raises(ValueError, match="tinker") as caught:
        parse_checked(text, source="pipeline.yaml")
    assert str(caught.value) in page
