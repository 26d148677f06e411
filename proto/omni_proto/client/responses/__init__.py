"""Turns the messages of a response into events, and the events into one result."""
