"""Brings the desired state into the cluster: which revisions, how many replicas, which writes in which order."""
