"""An engine's modules on a machine without a GPU, claiming a compute capability."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from fuzzgraph.releases import ensure
from fuzzgraph.targets.offline.cuda_on_cpu import (
    ACCELERATOR,
    DEVICE,
    STREAMS,
    ClaimsCuda,
    cuda_on_cpu,
)
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.packages import companions_of

VERSIONS = {"sglang": "0.5.23", "vllm": "0.33.0"}
Capability = tuple[int, int]
Import = Callable[[str], Any]


def companions(engine: str) -> bool:
    """Whether what the engine imports is installed."""
    return all(find_spec(name) for name in companions_of(engine))


@contextmanager
def device(engine: str, capability: Capability) -> Iterator[Import]:
    """Around everything of an engine: yields what imports its modules. Once per process."""
    sys.path.insert(0, str(ensure(engine, VERSIONS[engine])))
    answers = {
        **DEVICE,
        **STREAMS,
        "get_device_capability": lambda *_: capability,
        "get_device_properties": lambda *_: _properties(capability),
        "get_device_name": lambda *_: "NVIDIA H100" if capability[0] == 9 else "NVIDIA A100",
    }
    with ExitStack() as stack:
        stack.enter_context(cuda_on_cpu(answers))
        stack.enter_context(replaced_names([torch.accelerator], ACCELERATOR))
        stack.enter_context(replaced_names([torch], {name: STREAMS[name] for name in _STREAMS}))
        stack.enter_context(_modules_of_devices())
        yield {"sglang": _sglang, "vllm": _vllm}[engine](capability)


@contextmanager
def claims_cuda() -> Iterator[None]:
    """Around a call of a wrapper that asserts tensors of a GPU."""
    with ClaimsCuda():
        yield


_MORE = {"warp_size": 32, "max_threads_per_multi_processor": 2048}
_STREAMS = ("Stream", "Event")


@contextmanager
def _modules_of_devices() -> Iterator[None]:
    """Engines look their device's module of torch up by a tensor, which is the host's here."""
    torch.cpu.device = STREAMS["device"]  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del torch.cpu.device  # type: ignore[attr-defined]


def _properties(capability: Capability) -> Any:
    known = DEVICE["get_device_properties"]()
    return Stub(**{**_MORE, **vars(known), "major": capability[0], "minor": capability[1]})


def _sglang(capability: Capability) -> Import:
    from fuzzgraph.targets.sglang.release import engine_module
    from fuzzgraph.targets.sglang.stubs.platform import platform_of_a_gpu

    platform_of_a_gpu()
    # It asks whether there is a GPU before it asks torch, and files of tuned sizes are named by it.
    engine_module("sglang.srt.utils").get_device_name = lambda *_: torch.cuda.get_device_name()
    imported: Import = engine_module
    return imported


def _vllm(capability: Capability) -> Import:
    from fuzzgraph.targets.vllm.release import engine_module
    from fuzzgraph.targets.vllm.stubs import platform
    from fuzzgraph.targets.vllm.stubs.compiled_operators import answer_for_compiled_operators

    answer_for_compiled_operators()
    platform.become_cuda()
    platform._Chosen.capability = capability
    imported: Import = engine_module
    return imported
