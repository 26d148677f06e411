"""The pipelines of a Kubernetes cluster, from a watch of OmniPipelines; no other kind is watched."""
