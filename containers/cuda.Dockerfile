# FuzzGraph for NVIDIA, on PyTorch's image with the torch that sglang 0.5.13 pins. `.ci/container cuda`
# builds it and runs a night in it; docs/nightly.md says how to bring up a machine.
# With CUDA's compiler, by which FlashInfer builds a kernel when it is first asked for.
ARG IMAGE=pytorch/pytorch:2.11.0-cuda13.0-cudnn9-devel
FROM ${IMAGE}
LABEL fuzzgraph=cuda

# Triton compiles a launcher in C for each kernel.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        gcc git libc6-dev python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

# Its packages go beside those of the system's Python, which pip must not change, and torch is seen.
RUN python3 -m venv --system-site-packages /opt/fuzzgraph
ENV PATH=/opt/fuzzgraph/bin:$PATH FUZZ_BIN=/opt/fuzzgraph/bin

WORKDIR /opt/source
COPY pyproject.toml ./
COPY constraints constraints
COPY containers/install containers/install
RUN containers/install requirements
RUN containers/install compiled
COPY . .
RUN containers/install package && fuzzgraph --version

# Whoever runs it may write to /cache alone; releases and compiled kernels are kept there.
RUN useradd --system --home-dir /cache fuzzgraph && install -d -m 1777 /cache
ENV HOME=/cache USER=fuzzgraph OMP_NUM_THREADS=1 FUZZ_DEVICE=cuda \
    FUZZGRAPH_CACHE=/cache/fuzzgraph \
    TRITON_CACHE_DIR=/cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor
VOLUME /cache
USER fuzzgraph
WORKDIR /cache
CMD ["fuzzgraph", "doctor"]
