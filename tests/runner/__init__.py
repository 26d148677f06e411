"""Runs the whole suite as several pytest processes: `PYTHONPATH=tests python -m runner`.

A group of test files (groups.py) is one pytest process in a session of its own (process.py); a few run side by side.
Whatever a process does, the run ends: each has a bound, and one that dies, hangs or leaves processes behind fails the
run by the name of its group and of the test that ran last (report.py).
"""
