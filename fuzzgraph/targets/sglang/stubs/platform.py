"""What the engine asks its platform on a machine without a GPU: it gets a GPU server's answers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fuzzgraph.targets.offline.cuda_on_cpu import DEVICE, cuda_on_cpu
from fuzzgraph.targets.offline.import_stubs import server_lacks
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.release import engine_module, has_module

_PLATFORMS = "sglang.srt.platforms"
_PROBES = "sglang.srt.utils.common"
_IS_BLACKWELL = "is_sm100_supported"
_NOT_WITH_CUDA = {"aiter": "ROCm"}
_LAUNCH = (
    "sglang.srt.layers.attention.triton_backend",
    # From 0.5.16 on kernels lie in a package of their own.
    *(
        f"{package}.{kernels}_attention"
        for package in ("sglang.kernels.ops.attention", "sglang.srt.layers.attention.triton_ops")
        for kernels in ("decode", "extend", "prefill")
    ),
)
"""Modules that ask at each launch for whose GPU it is."""


@contextlib.contextmanager
def cuda_server(names: Mapping[str, Any] = DEVICE) -> Iterator[None]:
    """Around the engine's code: `cuda_on_cpu`, and packages of other devices cannot be called."""
    with cuda_on_cpu(names), server_lacks(_NOT_WITH_CUDA):
        yield


@contextlib.contextmanager
def blackwell_server(module: Any) -> Iterator[None]:
    """`cuda_server` whose GPU has compute capability 10.

    Args:
        module: of the engine, which asks for the device under a name of its own up to 0.5.18.
    """
    told = {"get_device_capability": lambda *_: (10, 0)}
    names = {_IS_BLACKWELL: lambda: True}
    # What it asks of everyone keeps its first answer, which another session may have had.
    with cuda_server({**DEVICE, **told}), replaced_names([engine_module(_PROBES), module], names):
        yield


@contextlib.contextmanager
def rocm_launches(cores: int) -> Iterator[None]:
    """Around the engine's code: its Triton attention launches kernels as for AMD's GPUs.

    Args:
        cores: of such a GPU; a persistent grid has as many programs.
    """
    modules = [engine_module(name) for name in _LAUNCH if has_module(name)]
    with replaced_names(modules, {"_is_hip": True, "_NUM_CU": cores}):
        yield


@contextlib.contextmanager
def in_environment(
    variables: Mapping[str, str], server: contextlib.AbstractContextManager[None]
) -> Iterator[None]:
    """Around the code of the engine: `server`, with variables that other sessions have not."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        with server:
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def platform_of_a_gpu() -> None:
    """Have the engine take the code that a server with CUDA takes.

    From 0.5.23 on it writes latent KV by torch, in shapes that no graph captures, unless the
    platform says that it can launch Triton kernels.
    """
    if torch.cuda.is_available() or not has_module(_PLATFORMS):
        return
    platforms = engine_module(_PLATFORMS)
    cuda = getattr(platforms, "CudaSRTPlatform", None)
    if cuda is not None and hasattr(cuda, "capabilities"):
        platforms.current_platform.capabilities = cuda.capabilities
