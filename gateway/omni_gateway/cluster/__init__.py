"""The pipelines of a Kubernetes cluster: which there are, from a watch of OmniPipelines and of nothing else."""
