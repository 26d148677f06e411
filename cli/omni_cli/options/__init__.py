"""What each subcommand takes: its options, their help, and the checks that need nothing else."""
