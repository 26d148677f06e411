"""The subcommands of `omnipipe`, one module each. This package imports nothing, so `--help` is quick."""
