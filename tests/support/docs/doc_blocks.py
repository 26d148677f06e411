"""Every code block of README and docs, with the test that uses the block or the reason why none does.

`PYTHONPATH=tests python -m support.docs.doc_blocks` prints the list.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from support.docs.doc_examples import PAGES, ROOT

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page."""

    page: str
    """Path from the repository's root."""
    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Returns the commands that a console block shows after `$`. A `\\` continues a command on the next line."""
        return re.findall(r"^\$ ((?:.*\\\n)*.*)$", self.text, re.MULTILINE) if self.language == "console" else []


@dataclass(frozen=True, slots=True)
class Use:
    """A pattern of blocks, and the test that uses them or the reason why none does."""

    page: str
    """A glob pattern of paths."""
    language: str
    pattern: str
    """A regular expression that is found in the block."""
    test: str = ""
    """The test that reads the block, or a part of it, from the page and uses it, as a path below tests/."""
    reason: str = ""
    """Why no test reads the block from the page."""


USES = (
    # Mostly blocks that tests read from the page and use.
    Use("*", "yaml", r"^kind: OmniPipeline", "controlplane/crd/test_crd_pages.py"),
    Use("docs/pipelines.md", "yaml", r"^kind: Job", "controlplane/crd/test_crd_pages.py"),
    Use("docs/page.md", "yaml", r"^gateway:", "controlplane/chart/test_helm_chart.py"),
    Use("docs/tls.md", "yaml", "", "unit/docs/test_security_page.py"),
    Use("docs/observability.md", "yaml", "^scrape_configs", "processes/observability/test_scrape_labels.py"),
    Use("docs/observability.md", "console", "", "controlplane/chart/test_chart_observability.py"),
    Use("docs/streaming.md", "yaml", "", "unit/docs/test_code_blocks.py"),
    Use("docs/operations.md", "yaml", "", "unit/docs/test_gitops_settings.py"),
    Use("docs/pipelines.md", "text", "tinker", "unit/proto/pipeline/test_pipeline_pages.py"),
    Use("README.md", "python", "OmniClient", "unit/service/request/test_prompt_embeds.py"),
    Use(
        "docs/requests.md",
        "python",
        "reply=",
        reason="needs a pipeline; pipeline/answers/test_stream_replies.py does it",
    ),
    Use("docs/requests.md", "python", "tools=", reason="needs a model; engine/generic/test_llm_reply_forms.py does it"),
    Use(
        "docs/requests.md",
        "python",
        "StructuredOutput",
        reason="needs a model; engine/generic/test_llm_reply_forms.py does it",
    ),
    Use("docs/requests.md", "python", "", "unit/service/request/test_prompt_embeds.py"),
    Use("docs/tracing.md", "console", "", reason="needs a collector; unit/service/request/test_tracing.py has one"),
    Use("README.md", "console", "manifests/tiny/model.yaml", "cluster/test_e2e_readme.py"),
    Use("docs/kind.md", "console", "manifests/tiny/model.yaml", "unit/docs/test_code_blocks.py"),
    Use("docs/install.md", "console", "make images", reason="builds images for minutes, and needs a registry"),
    Use("docs/install.md", "console", "", "controlplane/chart/test_install_pages.py"),
    Use("docs/upgrade.md", "console", "", "controlplane/chart/test_install_pages.py"),
    Use("docs/runbooks/*", "console", "", "controlplane/pipelines/test_runbook_commands.py"),
    Use("docs/runbooks/*", "promql", "", "pipeline/observability/test_prometheus.py"),
    Use("docs/client.md", "python", "", "processes/packaging/test_installed_package.py"),
    Use("docs/add-a-model.md", "python", "", "unit/docs/test_add_a_model_page.py"),
    Use("docs/add-a-model.md", "toml", "", "unit/docs/test_add_a_model_page.py"),
    Use("docs/add-a-model.md", "dockerfile", "", reason="builds an image for minutes"),
    Use("docs/other-languages.md", "console", "", "processes/packaging/test_other_languages.py"),
    # Mostly blocks that no test reads from the page. test_code_blocks.py still checks their options, make targets and
    # files.
    Use("README.md", "mermaid", "", reason="a picture"),
    Use(
        "README.md", "python", "OmniLLM", reason="starts engines; engine/qwen/test_omni_llm_qwen25.py makes such calls"
    ),
    Use("README.md", "console", "make demo", reason="takes minutes; pipeline/cli/test_cli_demo.py runs the demo"),
    Use(
        "docs/qwen3-omni.md",
        "console",
        "make demo",
        reason="takes minutes; pipeline/cli/test_cli_demo.py runs the demo",
    ),
    Use(
        "README.md",
        "console",
        "v1/chat/completions",
        reason="fixed port; pipeline/gateway/test_gateway_clients.py does it",
    ),
    Use(
        "docs/gateway.md", "console", "", reason="fixed ports; pipeline/gateway/test_gateway_clients.py uses free ones"
    ),
    Use("docs/gateway.md", "python", "", reason="fixed port; pipeline/gateway/test_gateway_speech.py makes such calls"),
    Use("docs/gateway.md", "json", "", reason="an example of output"),
    Use("docs/gateway.md", "yaml", "", "unit/gateway/guard/test_keys.py"),
    Use("README.md", "console", "omnipipe run", reason="fixed port; pipeline/cli/test_cli_run.py runs it on free ones"),
    Use(
        "README.md",
        "console",
        "grpcurl",
        reason="fixed port; pipeline/clients/test_foreign_clients.py runs it on free ones",
    ),
    Use("README.md", "console", "samples/qwen25-omni.yaml", reason="needs GPUs and the model hub"),
    Use("docs/kind.md", "console", "", reason="needs kind or minikube"),
    Use("docs/gpu-check.md", "console", "", reason="needs a GPU"),
    Use("docs/gpu-sizing.md", "console", "", reason="needs GPUs and the model hub"),
    Use("docs/load-tests.md", "console", "", reason="fixed port; processes/cli/test_paced_pipeline.py runs the sample"),
    Use(
        "docs/operations.md",
        "console",
        "",
        reason="the reader's own file; controlplane/pipelines/test_rollout.py makes such changes",
    ),
    Use("docs/pipelines.md", "console", "hf-token", reason="needs a token of the model hub"),
    Use("docs/pipelines.md", "console", "kubectl get omni", reason="needs GPUs and the model hub"),
    Use("docs/pipelines.md", "console", "kubectl patch", reason="its pipeline needs a claim with a model"),
    Use(
        "docs/pipelines.md",
        "console",
        "grpcs://",
        reason="needs that cluster; pipeline/clients/test_tls_clients.py does it",
    ),
    Use("docs/requests.md", "console", "", reason="needs a served model; pipeline/cli/test_cli_generate.py does it"),
    Use("docs/tls.md", "console", "", reason="needs cert-manager; cluster/test_e2e_tls.py does it with a Secret"),
    Use("docs/status.md", "", "omnipipe status", reason="an example of output"),
)
"""The first match applies to a block."""


def blocks_of(page: Path) -> list[Block]:
    """Returns the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    return [Block(name, text.count("\n", 0, m.start()) + 1, m[1], m[2]) for m in FENCE.finditer(text)]


def all_blocks() -> list[Block]:
    """Returns the blocks of README and of every page of docs."""
    return [block for page in PAGES for block in blocks_of(page)]


def find_use(block: Block) -> Use | None:
    """Returns the first use that matches a block; None if there is none."""
    for use in USES:
        if (
            fnmatch(block.page, use.page)
            and use.language == block.language
            and re.search(use.pattern, block.text, re.MULTILINE)
        ):
            return use
    return None


def render_list() -> str:
    """Returns one line per block: its place, its language, and its test or reason (NOTHING if no use matches)."""
    lines = []
    for block in all_blocks():
        use = find_use(block)
        what = "NOTHING" if use is None else f"tests/{use.test}" if use.test else f"not run: {use.reason}"
        lines.append(f"{block.page}:{block.line} {block.language or 'plain'}: {what}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"{render_list()}\n")
