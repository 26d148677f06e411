"""Edges between stages: calls to downstream stages, and the tensors that are received and sent."""
