"""The HTTP gateway: OpenAI's API in front of pipelines. It calls them only through the public client.

request -> guard/ (id, key, limits, bounds) -> api/ (routes) -> openai/ (fields) -> entries/ -> the entry stage

Only connections, caches and counters outlive a request, so any number of replicas may run.
"""
