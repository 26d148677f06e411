"""What our runners use: their settings, the model's hooks, host memory, the check of vLLM's runner, failures."""
