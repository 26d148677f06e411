#!/bin/sh
# Creates .venv with everything that the demo and the tests need. Idempotent: a stamp file records what was installed.
# LIGHT=1 leaves out vLLM and torch: enough for `make check`, on Linux and macOS. The argument, if given, is an additional
# extra of pyproject.toml: `tools/setup.sh bench`.
# Needs Python 3.11-3.13. Wheels (6 GB unpacked; 0.7 GB for LIGHT=1) stay in uv's cache, outside the checkout.
set -eu
cd "$(dirname "$0")/.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/omnipipeline"
extra="${1:-}"

want="$(cat pyproject.toml constraints/cpu.txt constraints/overrides-cpu.txt | cksum | cut -d' ' -f1)"
full=".venv/.omnipipeline-$want"
stamp="$full${extra:+-$extra}"
[ -e "$stamp" ] && exit 0 # a full installation has all that LIGHT=1 installs
if [ -n "${LIGHT:-}" ]; then
  stamp="$full-light${extra:+-$extra}"
  [ -e "$stamp" ] && exit 0
fi

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
    mkdir -p "$cache"
    "$python" -m venv "$cache/uv" >&2 || {
      echo "python's venv module is missing: apt-get install python3-venv" >&2
      exit 1
    }
    "$cache/uv/bin/pip" install --quiet --require-hashes --requirement constraints/uv.txt >&2
  fi
  echo "$cache/uv/bin/uv"
}

python="$(find_python)"
# CPU wheels of vLLM exist only for Linux.
if [ -z "${LIGHT:-}" ] && [ "$(uname -s)" != Linux ]; then
  echo "the demo and the engines need Linux (vLLM's CPU build); here \`make setup LIGHT=1\` and \`make check\` work" >&2
  exit 1
fi
uv="$(find_uv)"
"$uv" venv --quiet --allow-existing --python "$python" .venv
if [ -n "${LIGHT:-}" ]; then
  echo "installing everything but vLLM and torch into .venv (under a minute)" >&2
  "$uv" pip install --quiet --python .venv/bin/python -e ".[operator,stage,gateway,cli,check${extra:+,$extra}]" \
    --constraints constraints/cpu.txt
  touch "$full-light" "$stamp"
  exit 0
fi
echo "installing vLLM for CPU and the rest into .venv (a minute or two)" >&2
# Compile the bytecode once, here. Otherwise, where PYTHONDONTWRITEBYTECODE is set, every engine process compiles the sources
# of vLLM and torch again, which takes as long as importing them.
"$uv" pip install --quiet --compile-bytecode --python .venv/bin/python \
  -e ".[operator,stage,gateway,cpu,cli,dev${extra:+,$extra}]" \
  --constraints constraints/cpu.txt --overrides constraints/overrides-cpu.txt
[ -n "$extra" ] || rm -f .venv/.omnipipeline-*
touch "$full" "$stamp"
