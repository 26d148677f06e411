"""Entry point of the `omnipipe` script. If a package is missing, it names the extra to install."""

from __future__ import annotations

import sys
from pathlib import Path

EXTRAS = {
    "cli": ("cel", "jsonschema", "rich", "typer"),
    "cluster": ("kubernetes", "prometheus_client"),
    "gateway": ("fastapi", "omni_gateway", "uvicorn"),
    "operator": ("msgspec", "omni_kube", "omni_operator"),
    "stage": ("aiohttp", "av", "google_crc32c", "numpy", "omni_stage", "PIL", "safetensors", "soundfile", "soxr"),
    "timeline": ("matplotlib",),
}
"""For each extra of the distribution omnipipeline, top-level modules that it brings and a command may miss."""
ENGINE_PACKAGES = ("vllm", "torch", "transformers")


def main() -> None:
    """Run the command. If a package is missing, print the extra to install and exit with code 1."""
    try:
        from omni_cli.main import app

        # kubectl runs a program of this name for `kubectl omni`.
        app(prog_name="kubectl omni" if Path(sys.argv[0]).name == "kubectl-omni" else None)
    except ModuleNotFoundError as error:
        if not (remedy := remedy_for(error.name or "")):
            raise
        sys.stderr.write(f"error: {error}; {remedy}\n")
        sys.exit(1)


def remedy_for(module: str) -> str:
    """Returns the command that installs a missing module; an empty text if no extra contains it."""
    top = module.partition(".")[0]
    if top in ENGINE_PACKAGES:
        return "install an engine: pip install 'omnipipeline[cpu]' or 'omnipipeline[gpu]'"
    extra = next((extra for extra, modules in EXTRAS.items() if top in modules), "")
    engines = "; [cpu] and [gpu] also bring an engine" if extra == "stage" else ""
    return extra and f"install what this command needs: pip install 'omnipipeline[{extra}]'{engines}"


if __name__ == "__main__":
    main()
