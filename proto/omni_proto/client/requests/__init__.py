"""Turns the arguments of a request into its messages."""
