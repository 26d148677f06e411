#!/bin/sh
# Inside the Dockerfile: makes /opt/venv with what the arguments tell uv to install. Bytecode is compiled here.
set -eu
python3 -m venv --without-pip /opt/venv
export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV=/opt/venv
/opt/uv/bin/uv pip install --compile-bytecode --link-mode copy "$@"
