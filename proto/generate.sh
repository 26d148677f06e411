#!/bin/sh
# Regenerates the protobuf and gRPC stubs next to their .proto files.
# The proto package equals its directory, so imports need no rewriting.
set -eu
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
out="${1:-proto}"
include="$("$python" -c 'import grpc_tools, os, google.rpc, sys; print(os.path.join(os.path.dirname(grpc_tools.__file__), "_proto"))')"
googleapis="$("$python" -c 'import google.rpc.status_pb2 as m, os; print(os.path.abspath(os.path.join(os.path.dirname(m.__file__), "..", "..")))')"
"$python" -m grpc_tools.protoc -I proto -I "$include" -I "$googleapis" \
  --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" \
  proto/omni_proto/stage/v1/*.proto
# Only one file has a service; protoc writes an empty stub for each of the others.
for file in "$out"/omni_proto/stage/v1/*_pb2_grpc.py; do
  case "$file" in *stage_service_pb2_grpc.py) ;; *) rm -f "$file" ;; esac
done
