"""Requests over several replicas of a stage."""
