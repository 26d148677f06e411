"""The options of each subcommand, their help, and the checks that need only the options."""
