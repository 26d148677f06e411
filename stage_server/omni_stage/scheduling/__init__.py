"""Pure rules of which work comes first, shared by vLLM's schedulers, the simulated engines and the service."""
