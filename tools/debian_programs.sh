#!/bin/sh
# debian_programs.sh PACKAGE PROGRAM...: prints the folder that contains the programs: that of PATH, else that of Debian's
# package, which is unpacked into the cache. It needs root only if the machine has no package lists, because apt-get
# download itself writes only to the current folder.
set -eu
package="$1"
shift
cache="${XDG_CACHE_HOME:-$HOME/.cache}/omnipipeline/bin/$package"

has_all() {
  for program in "$@"; do
    [ -x "$folder/$program" ] || return 1
  done
}

for folder in "$(dirname "$(command -v "$1" || echo /nowhere/at)")" "$cache/usr/bin"; do
  if has_all "$@"; then
    echo "$folder"
    exit
  fi
done

fail() {
  echo "the tests run a real $1, which is not installed, and it could not be fetched: $2." >&2
  echo "Install it, so that $3 is on PATH (Debian: apt-get install $package)." >&2
  exit 1
}

command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1 || fail "$package" "this machine has no apt-get" "$*"
mkdir -p "$(dirname "$cache")"
work="$(mktemp -d "$cache.XXXXXX")"
trap 'rm -rf "$work"' EXIT
download() {
  (cd "$work" && apt-get -o APT::Sandbox::User=root download "$package" >&2)
}
echo "fetching Debian's package $package (once)" >&2
if ! download 2>"$work/error"; then
  # A new machine has no package lists yet, and only root may fetch them.
  [ "$(id -u)" = 0 ] && apt-get update >&2 && download || fail "$package" "$(tail -n 1 "$work/error")" "$*"
fi
dpkg -x "$work/$package"_*.deb "$work/unpacked"
# If two runs reach this line at the same time, the first mv succeeds, and both runs use its result.
mv -T "$work/unpacked" "$cache" 2>/dev/null || has_all "$@" || fail "$package" "$cache cannot be written" "$*"
echo "$cache/usr/bin"
