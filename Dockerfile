# docker build -t autotune .
# docker run --rm --gpus all --shm-size 8g -v autotune-cache:/cache -v "$PWD:/work" autotune search MODEL --global-batch-size 64
# docker build --target service -t autotune-service . is `autotune serve`: docs/service/compose.yaml.
# Without --gpus all it searches on the CPU. --shm-size: data loader workers hand batches over in shared memory.
# BASE: a Debian or Ubuntu with Python 3.11 or newer. Without CUDA, as debian:12, its searches run on the CPU.
ARG BASE=nvidia/cuda:13.0.2-runtime-ubuntu24.04
FROM $BASE AS search

ENV DEBIAN_FRONTEND=noninteractive \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# Compilers: torch.compile makes C++ for a CPU, and with gcc and Python's headers Triton makes its own and fused kernels.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ gcc libc6-dev python3 python3-dev python3-venv \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/autotune

ENV PATH=/opt/autotune/bin:$PATH

# What rarely changes first: torch alone is a layer that a change to the source leaves as it is.
COPY constraints.txt /source/
RUN pip install --constraint /source/constraints.txt torch

COPY pyproject.toml README.md LICENSE /source/
COPY autotune /source/autotune
COPY search_spaces /source/search_spaces
RUN pip install --constraint /source/constraints.txt "/source[peft,torchao,liger]" \
    && autotune --help

# Nobody trains as root. Whoever runs it with --user finds both folders open too.
RUN useradd --create-home --uid 1001 autotune \
    && install --directory --owner autotune --mode 0777 /cache /work
ENV HF_HOME=/cache/huggingface \
    XDG_CACHE_HOME=/cache \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TRITON_CACHE_DIR=/cache/triton
VOLUME ["/cache"]
USER 1001
WORKDIR /work

ENTRYPOINT ["autotune"]
CMD ["--help"]

# `autotune serve`. --database postgresql://..., or AUTOTUNE_DATABASE; else SQLite in the volume.
FROM search AS service
USER 0
RUN pip install --constraint /source/constraints.txt "/source[service,oidc,postgres]" \
    && install --directory --owner autotune --mode 0700 /state
ENV XDG_STATE_HOME=/state
VOLUME ["/state"]
EXPOSE 8321
USER 1001
CMD ["serve"]

# Without --target: the command line.
FROM search
