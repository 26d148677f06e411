"""From a StageConfig to the arguments of vLLM's engine: budgets, and the fields that engineArgs may set."""
