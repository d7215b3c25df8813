"""The platform of a server with CUDA, on a machine without a GPU.

vLLM's own `NonNvmlCudaPlatform` answers, from a `torch.cuda` that has answers; see `engine_runs`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator
from typing import Any

import torch

from fuzzgraph.targets.offline.cuda_on_cpu import ACCELERATOR, DEVICE, STREAMS, cuda_on_cpu
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.streams import DEFAULT
from fuzzgraph.targets.vllm.release import engine_module

__all__ = ["BLACKWELL", "HOPPER", "become_cuda", "choose_backend", "engine_runs"]

HOPPER, BLACKWELL = (9, 0), (10, 0)
"""Compute capabilities of devices."""
_PLATFORMS = "vllm.platforms"
_UTILS = "vllm.v1.attention.backends.utils"
_STREAMS = {name: STREAMS[name] for name in ("Stream", "Event")}
# The engine unfreezes what an import left behind, and walks it at every capture.
_COLLECTOR = {"unfreeze": lambda: None}


@contextlib.contextmanager
def engine_runs() -> Iterator[None]:
    """Around every call of the engine: torch answers as on a machine with a GPU."""
    with (
        cuda_on_cpu({**DEVICE, **STREAMS, "get_device_name": lambda *_: "NVIDIA H100"}),
        replaced_names([torch.accelerator], ACCELERATOR),
        replaced_names([torch], _STREAMS),
        replaced_names([gc], _COLLECTOR),
    ):
        # The engine keeps its stream by itself, for each thread, and asks torch no more.
        engine_module("vllm.utils.torch_utils")._current_stream_tls.value = DEFAULT
        yield


def become_cuda() -> None:
    """Have the engine take the code that a server with CUDA takes; before its other imports."""
    _Chosen.capability = HOPPER  # what is imported asks, and a session before had its own
    platforms = engine_module(_PLATFORMS)
    if isinstance(vars(platforms).get("_current_platform"), _Chosen):
        return
    cuda = engine_module(f"{_PLATFORMS}.cuda")
    platform: Any = type("CudaPlatform", (_Chosen, cuda.NonNvmlCudaPlatform), {})
    platforms._current_platform = platform()


def choose_backend(path: str, capability: tuple[int, int] = HOPPER) -> None:
    """The attention backend, by the dotted path of its class, that `--attention-backend` names, on
    a device of this compute capability."""
    _Chosen.backend, _Chosen.capability = path, capability
    engine_module("vllm.v1.attention.selector")._cached_get_attn_backend.cache_clear()
    _forget_the_last_device()


def _forget_the_last_device() -> None:
    """The engine keeps what it found out about its device, and the layout that a backend asked
    for, for the life of the process; targets that share one have devices of their own."""
    utils = engine_module(_UTILS)
    if hasattr(utils, "_KV_CACHE_LAYOUT_OVERRIDE"):
        utils._KV_CACHE_LAYOUT_OVERRIDE = None
        utils.get_kv_cache_layout.cache_clear()
    for held in vars(engine_module("vllm.utils.flashinfer")).values():
        if isinstance(held, functools._lru_cache_wrapper):
            held.cache_clear()


class _Chosen:
    """Takes the chosen backend without the checks of what its kernels were tuned for: heads of 32
    columns and more.
    """

    backend = ""
    capability = HOPPER

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> Any:
        return engine_module(f"{_PLATFORMS}.interface").DeviceCapability(*cls.capability)

    @classmethod
    def get_attn_backend_cls(cls, *_: Any, **__: Any) -> str:
        return cls.backend

    @classmethod
    def current_device(cls) -> torch.device:
        """Where layers make weights of their own (gdn_linear_attn.py, `RMSNormGated`): torch takes
        the number that CUDA has for it for an accelerator's."""
        return torch.device("cpu")

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return True
