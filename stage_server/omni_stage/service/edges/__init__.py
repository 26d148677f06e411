"""Edges between stages: calls to the stages below, and the tensors that come and go."""
