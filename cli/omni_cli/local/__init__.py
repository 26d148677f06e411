"""A pipeline on this machine: stage servers as processes, their ports, their GPUs, and nothing left behind."""
