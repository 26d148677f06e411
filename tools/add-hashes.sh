#!/bin/sh
# add-hashes.sh HASHES LIST...: replaces each line NAME==VERSION of the lists by the line of the file HASHES that also has the
# hashes of that version. Fails if there is none. uv then installs only files with these hashes.
set -eu
hashes="$1"
shift
for list in "$@"; do
  awk -v file="$hashes" '
    NR == FNR { line[$1] = $0; next }
    !($1 in line) { print file " has no hash of " $1 "; run make constraints" >"/dev/stderr"; missing = 1 }
    { print line[$1] }
    END { exit missing }' "$hashes" "$list" >"$list.new"
  mv "$list.new" "$list"
done
