"""From a StageConfig to the arguments of vLLM's engine: budgets and what may be said in engineArgs."""
