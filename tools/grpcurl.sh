#!/bin/sh
# Prints the path of grpcurl, a gRPC client with which the tests call a stage: $GRPCURL, else the grpcurl on PATH, else one
# that is built from its Go module into the cache.
set -eu
version=v1.9.3
cache="${XDG_CACHE_HOME:-$HOME/.cache}/omnipipeline/bin"
if [ -n "${GRPCURL:-}" ]; then
  echo "$GRPCURL"
elif command -v grpcurl >/dev/null 2>&1; then
  command -v grpcurl
else
  if [ ! -x "$cache/grpcurl-$version/grpcurl" ]; then
    command -v go >/dev/null 2>&1 || {
      echo "the tests call a stage with grpcurl, which is not installed, and Go, which could build it, is missing too." >&2
      echo "Install one of them (https://github.com/fullstorydev/grpcurl/releases, https://go.dev/dl) or set GRPCURL." >&2
      exit 1
    }
    echo "building grpcurl $version (once)" >&2
    GOBIN="$cache/grpcurl-$version" GOFLAGS=-mod=mod CGO_ENABLED=0 go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@$version" >&2
  fi
  echo "$cache/grpcurl-$version/grpcurl"
fi
