"""Runs a program in a pod and ends only when its reader has everything. `ClientPod.run` is that reader.

stdin: a line with a number of bytes, then as many bytes for the program, and its end when the reader is done.
stdout: a line with a number of bytes, then as many bytes of JSON {"returncode", "stdout", "stderr"}.
"""

from __future__ import annotations

import json
import subprocess
import sys


def main() -> None:
    """Runs the program that the arguments name."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    asked = source.read(int(source.readline()))
    done = subprocess.run(sys.argv[1:], input=asked, capture_output=True, check=False)
    told = {"returncode": done.returncode, "stdout": done.stdout.decode(), "stderr": done.stderr.decode()}
    answer = json.dumps(told).encode()
    sink.write(b"%d\n%b" % (len(answer), answer))
    sink.flush()
    source.read()


if __name__ == "__main__":
    main()
