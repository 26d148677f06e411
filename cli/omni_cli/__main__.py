"""Entry point of the `omnipipe` script. If a package is missing, it names the extra to install."""

from __future__ import annotations

import sys

CLI_PACKAGES = ("cel", "jsonschema", "kubernetes", "matplotlib", "rich", "typer")
"""Top-level modules of omnipipeline[cli]."""
ENGINE_PACKAGES = ("vllm", "torch", "transformers", "safetensors", "numpy", "omni_stage")


def main() -> None:
    """Run the command. If a package is missing, print the extra to install and exit with code 1."""
    try:
        from omni_cli.main import app

        app()
    except ModuleNotFoundError as error:
        if not (remedy := remedy_for(error.name or "")):
            raise
        sys.stderr.write(f"error: {error}; {remedy}\n")
        sys.exit(1)


def remedy_for(module: str) -> str:
    """Returns the command that installs a missing module; an empty text if no extra contains it."""
    top = module.partition(".")[0]
    if top in CLI_PACKAGES:
        return "install the command's packages: pip install 'omnipipeline[cli]'"
    if top in ENGINE_PACKAGES:
        return "install an engine: pip install 'omnipipeline[cpu]' or 'omnipipeline[gpu]'"
    return ""


if __name__ == "__main__":
    main()
