#!/bin/sh
# Builds images with the first of docker, podman and buildah that works; $BUILDER selects one of them.
#   tools/images.sh [TARGET ...]      operator, stage-cpu, stage-gpu, stage-sim, demo; default: operator and stage-cpu
# $REGISTRY is put before the images' names. $TAG replaces the version as the tag. $BUILD_FLAGS are passed to the builder
# unchanged, for example for a network with its own certificate authority (podman, buildah):
#   BUILD_FLAGS="--volume /etc/ssl/certs:/etc/ssl/certs:ro"
# With $PUSH, docker buildx builds each image for all $PLATFORMS (default: linux/amd64,linux/arm64; stage-gpu is for amd64 only)
# and pushes it with a bill of materials and provenance (SLSA).
set -eu
cd "$(dirname "$0")/.."

version="$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)"
tag="${TAG:-$version}"
prefix="${REGISTRY:+${REGISTRY%/}/}"

works() {
  case "$1" in
    docker) docker info ;;
    podman) podman info ;;
    buildah) buildah info ;;
    *) echo "BUILDER is docker, podman or buildah" >&2; exit 2 ;;
  esac >/dev/null 2>&1
}

find_builder() {
  for candidate in ${BUILDER:-docker podman buildah}; do
    if command -v "$candidate" >/dev/null 2>&1 && works "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  echo "no working docker, podman or buildah (docker needs its daemon). Debian, Ubuntu: apt-get install buildah" >&2
  exit 1
}

# The names that the chart uses by default: the stage image with the plain tag is the one for GPUs.
name_of() {
  case "$1" in
    operator) echo "${prefix}omnipipeline-operator:$tag" ;;
    stage-gpu) echo "${prefix}omnipipeline-stage:$tag" ;;
    stage-cpu) echo "${prefix}omnipipeline-stage:$tag-cpu" ;;
    stage-sim) echo "${prefix}omnipipeline-stage:$tag-sim" ;;
    demo) echo "${prefix}omnipipeline-demo:$tag" ;;
    *) echo "no such target: $1 (operator, stage-cpu, stage-gpu, stage-sim, demo)" >&2; exit 2 ;;
  esac
}

[ "$#" -gt 0 ] || set -- operator stage-cpu
for target in "$@"; do name_of "$target" >/dev/null; done
[ -z "${PUSH:-}" ] || BUILDER=docker
builder="$(find_builder)"
labels="--label org.opencontainers.image.version=$version"
if revision="$(git rev-parse HEAD 2>/dev/null)"; then
  labels="$labels --label org.opencontainers.image.revision=$revision"
fi
for target in "$@"; do
  name="$(name_of "$target")"
  echo "$builder: $target as $name" >&2
  case "$builder" in
    # --layers caches the layers; docker and podman do so by default.
    buildah) set -- buildah build --layers ;;
    docker)
      set -- docker build
      if [ -n "${PUSH:-}" ]; then
        platforms="${PLATFORMS:-linux/amd64,linux/arm64}"
        [ "$target" != stage-gpu ] || platforms=linux/amd64
        set -- docker buildx build --push --platform "$platforms" --sbom=true --provenance=mode=max
      fi
      ;;
    *) set -- "$builder" build ;;
  esac
  # The flags must be split into words.
  # shellcheck disable=SC2086
  "$@" $labels ${BUILD_FLAGS:-} --target "$target" --tag "$name" .
  echo "$name"
done
