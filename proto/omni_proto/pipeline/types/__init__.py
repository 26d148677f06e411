"""The resource as types: pydantic models of its spec, its status, and the Kubernetes objects inside it."""
