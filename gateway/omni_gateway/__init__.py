"""The HTTP gateway: OpenAI's API in front of pipelines, over the public client only.

request -> guard/ (id, key, limits, bounds) -> api/ (routes) -> openai/ (fields) -> entries.py -> the entry stage

Only connections and counters outlive a request, so any number of replicas may run.
"""
