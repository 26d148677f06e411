"""The HTTP gateway: OpenAI's API in front of pipelines, over the public client only.

request -> guard/ (id, key, limits, bounds) -> api/ (routes) -> openai/ (fields) -> entries.py -> the entry stage

No state outlives a request but connections and counters, so any number of replicas may run.
"""
