"""Runs a pipeline on this machine: stage servers as processes, their ports and their GPUs."""
