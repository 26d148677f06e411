"""Entry point of the `omnipipe` script, which also works where the packages of its extra are missing: it names them."""

from __future__ import annotations

import sys

CLI_PACKAGES = ("cel", "jsonschema", "kubernetes", "matplotlib", "rich", "typer")
"""Top-level modules of omnipipeline[cli]."""
ENGINE_PACKAGES = ("vllm", "torch", "transformers", "safetensors", "numpy", "omni_stage")


def main() -> None:
    """Run the command. Exits 1 with the extra to install where a package of it is missing."""
    try:
        from omni_cli.main import app

        app()
    except ModuleNotFoundError as error:
        if not (remedy := remedy_for(error.name or "")):
            raise
        sys.stderr.write(f"error: {error}; {remedy}\n")
        sys.exit(1)


def remedy_for(module: str) -> str:
    """Returns what to install for a module that is missing; empty for one that no extra brings."""
    top = module.partition(".")[0]
    if top in CLI_PACKAGES:
        return "install the command's packages: pip install 'omnipipeline[cli]'"
    if top in ENGINE_PACKAGES:
        return "install an engine: pip install 'omnipipeline[cpu]' or 'omnipipeline[gpu]'"
    return ""


if __name__ == "__main__":
    main()
