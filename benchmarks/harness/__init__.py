"""Runs the sides of a case in turn, and judges, stores, draws and prints the result."""
