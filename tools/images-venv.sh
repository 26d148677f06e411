#!/bin/sh
# The Dockerfile runs this script. It creates /opt/venv, installs packages there, and compiles their bytecode. It passes its
# arguments to `uv pip install`.
set -eu
python3 -m venv --without-pip /opt/venv
export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV=/opt/venv
/opt/uv/bin/uv pip install --compile-bytecode --link-mode copy "$@"
