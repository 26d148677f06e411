"""What every runner of ours shares: its settings, the model's hooks, host memory, what a failure means."""
