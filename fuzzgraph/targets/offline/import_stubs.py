"""Modules that sglang imports and that a machine without a GPU lacks, each with its reason.

The list is explicit: a missing module that is not on it is an error that names it. A module that
is really installed is used, whatever stands here. What a stand-in module hands out does nothing;
code that would compute with it belongs to a kernel, and no target here runs those.
"""

from __future__ import annotations

import enum
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

__all__ = ["ABSENT", "allow_absent"]

_KERNELS = "compiled kernels for GPUs; metadata code imports their names and calls none"
_HTTP = "the HTTP server and its clients; no server is started"
_MODELS = "loads model files; no model is loaded"
_VISION = "image preprocessing; no images"

ABSENT: Mapping[str, str] = {
    "IPython": "interactive display; no notebook",
    "PIL": _VISION,
    "aiter": _KERNELS,
    "compressed_tensors": "quantised checkpoints; no model is loaded",
    "cuda": _KERNELS,
    "cutlass": _KERNELS,
    "deep_gemm": _KERNELS,
    "fastapi": _HTTP,
    "flash_mla": _KERNELS,
    "gguf": _MODELS,
    "orjson": _HTTP,
    "partial_json_parser": "tool calls in chat answers; no server is started",
    "pybase64": _HTTP,
    "requests": _HTTP,
    "sentencepiece": "a tokenizer; token ids are given",
    "sgl_kernel": _KERNELS,
    "starlette": _HTTP,
    "torchvision": _VISION,
    "tvm_ffi": _KERNELS,
    "uvicorn": _HTTP,
    "xgrammar": "constrained answers; no server is started",
    "zmq": "talks between server processes; there is one process",
}
"""Top-level module -> why nothing is lost without it."""


class _Meta(type):
    """Classes answer for any attribute, so that decorators and bases made of them work."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Nothing()
        setattr(cls, name, value)
        return value

    def __or__(cls, other: object) -> Any:
        return object

    def __ror__(cls, other: object) -> Any:
        return object

    def __getitem__(cls, key: object) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class _Nothing(metaclass=_Meta):
    """An object that can be named, called and subclassed, and does nothing."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __init_subclass__(cls, **kwargs: object) -> None: ...

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """As the type of a field of the engine's HTTP models: anything goes."""
        return {"type": "any"}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decorated = args[0] if len(args) == 1 and not kwargs else None
        return decorated if callable(decorated) else _Nothing()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()

    def __getitem__(self, key: object) -> Any:
        return _Nothing()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __or__(self, other: object) -> Any:
        return object

    def __ror__(self, other: object) -> Any:
        return object

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (object,)


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Meta(name, (_Nothing,), {}) if name[:1].isupper() else _Nothing()
        setattr(self, name, value)
        return value


def _interpolation_mode(module: types.ModuleType) -> None:
    names = "NEAREST NEAREST_EXACT BILINEAR BICUBIC BOX HAMMING LANCZOS"
    module.__dict__["InterpolationMode"] = enum.Enum("InterpolationMode", names)


def _fp8(module: types.ModuleType) -> None:
    module.__dict__["e4m3_dtype"] = torch.float8_e4m3fn


def _no_plan(module: types.ModuleType) -> None:
    """FlashAttention's planner; the engine goes on without a plan where there is none."""
    module.__dict__["get_scheduler_metadata"] = lambda *_, **__: None


_CONTENT: Mapping[str, Callable[[types.ModuleType], None]] = {
    # Values that sglang reads at import, where an object that does nothing is not enough.
    "aiter": _fp8,
    "aiter.ops.triton.utils.types": _fp8,
    "sgl_kernel.flash_attn": _no_plan,
    "torchvision.transforms": _interpolation_mode,
    "torchvision.transforms.functional": _interpolation_mode,
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for listed modules that nobody else found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__dict__["__version__"] = "99.0"  # passes every "at least" check
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        if (fill := _CONTENT.get(module.__name__)) is not None:
            fill(module)


def allow_absent() -> None:
    """Let listed modules be imported where they are missing; once per process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())  # last: what is installed wins
