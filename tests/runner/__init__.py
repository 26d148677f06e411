"""Runs the whole suite as several pytest processes: `PYTHONPATH=tests python -m runner`.

Each group of test files (groups.py) runs in one pytest process in its own session (process.py). A few groups run
concurrently. Each process has a time limit, so the run always ends. A process that dies, hangs or leaves processes
behind fails the run, and the report names its group and the test that ran last (report.py).
"""
