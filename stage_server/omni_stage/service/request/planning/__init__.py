"""Validates a Start and turns it into a plan: prompt, sampling, form of the reply, and the stages that are needed."""
