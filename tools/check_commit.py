"""Checks commit messages: a subject of at most 72 characters, and a body that says why if more than 30 lines change.

`check_commit.py FILE` checks the message in a file against the staged changes (the commit-msg hook);
`check_commit.py --range A..B` checks the commits of a range.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SUBJECT = 72
LINES_WITHOUT_BODY = 30


def find_faults(message: str, changed: int) -> list[str]:
    """Returns what is wrong with a commit message for so many changed lines."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject, body = (lines or [""])[0], [line for line in lines[1:] if line.strip()]
    if subject.startswith(("Merge ", "fixup! ", "squash! ")):
        return []
    faults = []
    if not subject.strip():
        faults.append("the subject is empty")
    if len(subject) > SUBJECT:
        faults.append(f"the subject has {len(subject)} characters; at most {SUBJECT} are allowed")
    if len(lines) > 1 and lines[1].strip():
        faults.append("the line after the subject must be empty")
    if changed > LINES_WITHOUT_BODY and not body:
        faults.append(f"{changed} lines change: say why in a body")
    return faults


def count_lines(*arguments: str) -> int:
    """Returns the lines that `git ARGUMENTS --numstat` adds and removes."""
    rows = [row.split("\t")[:2] for row in git(*arguments, "--numstat").splitlines() if "\t" in row]
    return sum(int(count) for row in rows for count in row if count != "-")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def main(arguments: list[str]) -> int:
    if arguments[0] == "--range":
        commits = git("rev-list", "--no-merges", arguments[1]).split()
        found = {
            commit[:10]: find_faults(git("log", "-1", "--format=%B", commit), count_lines("show", "--format=", commit))
            for commit in commits
        }
    else:
        message = Path(arguments[0]).read_text(encoding="utf-8")
        found = {"commit message": find_faults(message, count_lines("diff", "--cached"))}
    for name, faults in found.items():
        for fault in faults:
            sys.stderr.write(f"{name}: {fault}\n")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
