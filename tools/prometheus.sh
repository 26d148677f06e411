#!/bin/sh
# Prints the folder that contains prometheus and promtool: $PROMETHEUS_BIN, else the folder of the programs on PATH, else the
# folder of Debian's package, which is unpacked into the cache. It needs root only if the machine has no package lists,
# because apt-get download itself writes only to the current folder.
set -eu
cache="${XDG_CACHE_HOME:-$HOME/.cache}/omnipipeline/bin/prometheus"

if [ -n "${PROMETHEUS_BIN:-}" ]; then
  echo "$PROMETHEUS_BIN"
  exit
fi
if command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1; then
  dirname "$(command -v prometheus)"
  exit
fi
if [ -x "$cache/usr/bin/prometheus" ] && [ -x "$cache/usr/bin/promtool" ]; then
  echo "$cache/usr/bin"
  exit
fi

fail() {
  echo "the tests run a real Prometheus, which is not installed, and it could not be fetched: $1." >&2
  echo "Install prometheus and promtool (Debian: apt-get install prometheus; https://prometheus.io/download)," >&2
  echo "or set PROMETHEUS_BIN to the folder that holds both." >&2
  exit 1
}

command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1 || fail "this machine has no apt-get"
mkdir -p "$(dirname "$cache")"
work="$(mktemp -d "$cache.XXXXXX")"
trap 'rm -rf "$work"' EXIT
download() {
  (cd "$work" && apt-get -o APT::Sandbox::User=root download prometheus >&2)
}
echo "fetching Debian's package of Prometheus (19 MB, once)" >&2
if ! download 2>"$work/error"; then
  # A new machine has no package lists yet, and only root may fetch them.
  [ "$(id -u)" = 0 ] && apt-get update >&2 && download || fail "$(tail -n 1 "$work/error")"
fi
dpkg -x "$work"/prometheus_*.deb "$work/unpacked"
# If two runs reach this line at the same time, the first mv succeeds, and both runs use its result.
mv -T "$work/unpacked" "$cache" 2>/dev/null || [ -x "$cache/usr/bin/prometheus" ] || fail "$cache cannot be written"
echo "$cache/usr/bin"
