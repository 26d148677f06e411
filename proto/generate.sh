#!/bin/sh
# Regenerates the protobuf and gRPC stubs next to their .proto files: generate.sh [FOLDER]
# The proto package equals its directory, so imports need no rewriting.
set -eu
cd "$(dirname "$0")/.."
out="${1:-proto}"
uv="$(command -v uv || echo "${XDG_CACHE_HOME:-$HOME/.cache}/omnipipeline/uv/bin/uv")"
# Stubs refuse a grpcio or protobuf that is older than the tools that made them. So the tools are the oldest that pyproject.toml
# allows. They cannot use the newer protobuf in .venv, so uv runs them in an environment of their own.
"$uv" run --quiet --isolated --no-project --python "${PYTHON:-.venv/bin/python}" \
  --with grpcio-tools==1.80.0 --with googleapis-common-protos python - "$out" proto/omni_proto/stage/v1/*.proto <<'PYTHON'
import sys
from pathlib import Path

import google.rpc.status_pb2
import grpc_tools.protoc

out, *files = sys.argv[1:]
includes = Path(grpc_tools.__file__).parent / "_proto", Path(google.rpc.status_pb2.__file__).parents[2]
options = [*(f"-I{path}" for path in ("proto", *includes)), *(f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python"))]
sys.exit(grpc_tools.protoc.main(["protoc", *options, *files]))
PYTHON
# Only one file has a service; protoc writes an empty stub for each of the others.
for file in "$out"/omni_proto/stage/v1/*_pb2_grpc.py; do
  case "$file" in *stage_service_pb2_grpc.py) ;; *) rm -f "$file" ;; esac
done
