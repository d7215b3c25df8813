# FuzzGraph for AMD, on AMD's PyTorch image with the torch that sglang 0.5.13 pins. `.ci/container rocm`
# builds it and runs a night in it; docs/nightly.md says how to bring up a machine.
ARG IMAGE=rocm/pytorch:rocm7.14_ubuntu24.04_py3.12_pytorch_release_2.11.0
FROM ${IMAGE}
LABEL fuzzgraph=rocm

# Triton compiles a launcher in C for each kernel.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        gcc git libc6-dev python3-dev \
    && rm -rf /var/lib/apt/lists/*

# The image has its torch in an environment; one made beside it would not see that torch.
ENV PATH=/opt/venv/bin:$PATH FUZZ_BIN=/opt/venv/bin

WORKDIR /opt/source
COPY pyproject.toml ./
COPY constraints constraints
COPY containers/install containers/install
RUN containers/install requirements
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
