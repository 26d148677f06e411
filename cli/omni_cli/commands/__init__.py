"""The subcommands of `omnipipe`, a module each. Nothing is imported here: `--help` is quick."""
