"""Engines of stages: StageEngine (`protocol`) and its vLLM implementation.

`arguments/` turns a StageConfig into vLLM's arguments, `requests/` turns a request into vLLM's inputs, and `offline/`
runs whole pipelines in this process. This file imports nothing, so that `arguments`, `requests.sampling` and `protocol`
can be imported without vLLM.
"""
