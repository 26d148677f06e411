"""How what is desired gets into the cluster: which revisions, how many replicas, which writes in which order."""
