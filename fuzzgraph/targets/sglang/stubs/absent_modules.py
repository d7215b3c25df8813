"""Modules that sglang imports and that a machine without a GPU lacks, each with its reason."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Mapping

import torch

_KERNELS = "compiled kernels for GPUs; metadata code imports their names and calls none"
_HTTP = "the HTTP server and its clients; no server is started"
_MODELS = "loads model files; no model is loaded"
_VISION = "image preprocessing; no images"

ABSENT: Mapping[str, str] = {
    "IPython": "interactive display; no notebook",
    "PIL": _VISION,
    "aiohttp": _HTTP,
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
    "setproctitle": "names of server processes; there is one process",
    "starlette": _HTTP,
    "torchvision": _VISION,
    "tvm_ffi": _KERNELS,
    "uvicorn": _HTTP,
    "xgrammar": "constrained answers; no server is started",
    "zmq": "talks between server processes; there is one process",
}
"""Top-level module -> why nothing is lost without it."""


def _interpolation_mode(module: types.ModuleType) -> None:
    names = "NEAREST NEAREST_EXACT BILINEAR BICUBIC BOX HAMMING LANCZOS"
    module.__dict__["InterpolationMode"] = enum.Enum("InterpolationMode", names)


def _fp8(module: types.ModuleType) -> None:
    module.__dict__["e4m3_dtype"] = torch.float8_e4m3fn


def _no_plan(module: types.ModuleType) -> None:
    """FlashAttention's planner; the engine goes on without a plan where there is none."""
    module.__dict__["get_scheduler_metadata"] = lambda *_, **__: None


CONTENTS: Mapping[str, Callable[[types.ModuleType], None]] = {
    "aiter": _fp8,
    "aiter.ops.triton.utils.types": _fp8,
    "sgl_kernel.flash_attn": _no_plan,
    "torchvision.transforms": _interpolation_mode,
    "torchvision.transforms.functional": _interpolation_mode,
}
"""Values that sglang reads at import, where an object that does nothing is not enough."""

LEFT_OUT: Mapping[str, str] = {
    "sglang.srt.layers.mhc": "kernels of TileLang for what lies between layers of DeepSeek V4",
}
"""Modules of sglang itself -> why nothing is lost without it."""
