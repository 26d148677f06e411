"""What all our runners share: its settings, the model's hooks, host memory, what a failure means."""
