"""Stages with real engines: rows in and out, start, faults, speed."""
