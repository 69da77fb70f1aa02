# The image of `make docker-*`: an image that brings its own TensorFlow, plus what this project needs
# beside it.
#
# BASE_IMAGE: TensorFlow 1.15 on Python 3.8, or 2.12 and newer on Python 3.10 to 3.12; by tag or by
# digest. Anything else is refused by the first step. Nothing that the base has is moved, save a
# pure-Python package that is too old for an addition, which the build log names.
ARG BASE_IMAGE=nvcr.io/nvidia/tensorflow:23.03-tf1-py3
FROM ${BASE_IMAGE}

# tf1 or tf2 makes the build fail on the other's image; auto takes what is there.
ARG RUNTIME=auto

WORKDIR /workspace/amp_xla

# Only what decides about packages, so that a change of code doesn't install them again.
COPY requirements/container-*.txt requirements/
COPY scripts/environment scripts/environment
COPY scripts/container_base.py scripts/container_install.py scripts/
RUN command -v python3 >/dev/null || { echo "error: this base has no python3" >&2; exit 2; }; \
    python3 scripts/container_base.py
RUN PIP_NO_CACHE_DIR=1 python3 -m scripts.container_install --runtime "${RUNTIME}"

# For `docker run --user $(id -u):$(id -g)`: a user without a name or a home of its own. TensorFlow,
# matplotlib and CUDA's kernel cache write to HOME; getpass asks for USER.
ENV HOME=/home/amp_xla USER=amp_xla
RUN mkdir -p "${HOME}" runs && chmod 1777 "${HOME}" runs

COPY . .
# A TensorFlow that cannot be imported is a failed build, not a surprise in a queue. No GPU needed.
RUN python3 -m scripts.container_install --check

# What was built, in the image's labels and in every run's run.json.
ARG BASE_IMAGE
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.title="amp_xla" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
# The container is where the runtime was chosen; `make train` in its shell takes its Python.
ENV PYTHONUNBUFFERED=1 SOURCE_REVISION="${REVISION}"
