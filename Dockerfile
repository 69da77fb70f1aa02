# The image of `make docker-*`: a TensorFlow image plus the packages that this project needs.
#
# BASE_IMAGE: TensorFlow 1.15 on Python 3.8, or 2.14 and newer on Python 3.10 to 3.12; by tag or by
# digest. The first step refuses others. No package of the base is changed, except a pure-Python package
# that is too old for an addition, which the build log names.
ARG BASE_IMAGE=nvcr.io/nvidia/tensorflow:23.03-tf1-py3
FROM ${BASE_IMAGE}

# With tf1 or tf2 the build fails on the other's image; auto accepts both.
ARG RUNTIME=auto

WORKDIR /workspace/amp_xla

# Only the files that decide about packages, so that a change of code does not install them again.
COPY requirements/container-*.txt requirements/
COPY amp_xla/process/checkout.py amp_xla/process/
COPY scripts/environment scripts/environment
COPY scripts/container_base.py scripts/container_install.py scripts/
RUN command -v python3 >/dev/null || { echo "error: this base has no python3" >&2; exit 2; }; \
    python3 scripts/container_base.py
RUN PIP_NO_CACHE_DIR=1 python3 -m scripts.container_install --runtime "${RUNTIME}"

# For `docker run --user $(id -u):$(id -g)`, a user without a name or a home. TensorFlow
# and CUDA's kernel cache write to HOME; getpass reads USER.
ENV HOME=/home/amp_xla USER=amp_xla
RUN mkdir -p "${HOME}" runs && chmod 1777 "${HOME}" runs

COPY . .
# A TensorFlow that cannot be imported fails the build. No GPU needed.
RUN AMP_XLA_DEVICE=cpu python3 -c 'import amp_xla.setup'

# The sources, in the image's labels and in the run.json of each run.
ARG BASE_IMAGE
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.title="amp_xla" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
ENV PYTHONUNBUFFERED=1 SOURCE_REVISION="${REVISION}"
