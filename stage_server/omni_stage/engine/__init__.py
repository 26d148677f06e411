"""Engines of stages: StageEngine (`protocol`) and its vLLM implementation.

`arguments/` makes vLLM's arguments of a StageConfig, `requests/` makes vLLM's inputs of a request, and `offline/` runs
whole pipelines in this process. Nothing is imported here: `arguments`, `requests.sampling` and `protocol` stay free of
vLLM.
"""
