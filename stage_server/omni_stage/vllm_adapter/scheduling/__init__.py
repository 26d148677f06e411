"""What every scheduler of ours shares: payloads on their way to the worker, and how requests end early."""
