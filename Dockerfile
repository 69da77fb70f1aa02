# The image of `make docker-build|docker-train|docker-test|docker-shell`: an image that brings its own
# TensorFlow, plus what this project needs beside it.
#
# Any image with TensorFlow 1.15 or 2.x will do as BASE_IMAGE. Nothing that it has is moved, save a
# pure-Python package that is too old for an addition, which the build log names.
ARG BASE_IMAGE=nvcr.io/nvidia/tensorflow:23.03-tf1-py3
FROM ${BASE_IMAGE}

# tf1 or tf2 makes the build fail on the other's image; auto takes what is there.
ARG RUNTIME=auto

WORKDIR /workspace/amp_xla

# Only what decides about packages, so that a change of code doesn't install them again.
COPY requirements/container-tf1.txt requirements/container-tf2.txt requirements/
COPY scripts/environment scripts/environment
COPY scripts/container_install.py scripts/
RUN PIP_NO_CACHE_DIR=1 python3 -m scripts.container_install --runtime "${RUNTIME}"

# For `docker run --user $(id -u):$(id -g)`: a user without a name or a home of its own. TensorFlow,
# matplotlib and CUDA's kernel cache write to HOME; getpass asks for USER.
ENV HOME=/home/amp_xla USER=amp_xla
RUN mkdir -p "${HOME}" runs && chmod 1777 "${HOME}" runs

COPY . .
# The container is where the runtime was chosen; `make train` in its shell takes its Python.
ENV PYTHONUNBUFFERED=1
