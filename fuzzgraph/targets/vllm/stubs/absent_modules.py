"""Modules that vLLM imports and that a machine without a GPU lacks, each with its reason."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

_KERNELS = "compiled kernels for GPUs"
_HTTP = "the HTTP server and its clients; no server is started"
_MODELS = "loads model files; no model is loaded"
_MEDIA = "images, sound and video; tokens are given"
_TOKENS = "a tokenizer; token ids are given"
_ANSWERS = "constrained answers and tool calls; no server is started"

ABSENT: Mapping[str, str] = {
    "PIL": _MEDIA,
    "aiohttp": _HTTP,
    "anthropic": _HTTP,
    "blake3": "hashes of images; tokens are given",
    "cachetools": _HTTP,
    "cbor2": _HTTP,
    "cloudpickle": "sends functions to other processes; there is one",
    "compressed_tensors": "quantised checkpoints; no model is loaded",
    "cpuinfo": "names the CPU in reports of usage, which are off",
    "cv2": _MEDIA,
    "depyf": "shows what torch.compile made; nothing is compiled",
    "diskcache": _ANSWERS,
    "fastapi": _HTTP,
    "gguf": _MODELS,
    "ijson": _HTTP,
    "lark": _ANSWERS,
    "llguidance": _ANSWERS,
    "lmformatenforcer": _ANSWERS,
    "mcp": _ANSWERS,
    "mistral_common": _TOKENS,
    "model_hosting_container_standards": _HTTP,
    "numba": "compiles drafts by n-grams for the CPU; Python runs them",
    "openai_harmony": _TOKENS,
    "orjson": _HTTP,
    "outlines_core": _ANSWERS,
    "partial_json_parser": _ANSWERS,
    "prometheus_client": _HTTP,
    "prometheus_fastapi_instrumentator": _HTTP,
    "pybase64": _HTTP,
    "requests": _HTTP,
    "sentencepiece": _TOKENS,
    "setproctitle": "names of server processes; there is one process",
    "starlette": _HTTP,
    "tiktoken": _TOKENS,
    "torchvision": _MEDIA,
    "urllib3": _HTTP,
    "uvloop": _HTTP,
    "watchfiles": _HTTP,
    "xgrammar": _ANSWERS,
    "zmq": "talks between server processes; there is one process",
    "vllm._C": _KERNELS,
    "vllm._C_stable_libtorch": _KERNELS,
    "vllm._flashmla_C": _KERNELS,
    "vllm._flashmla_extension_C": _KERNELS,
    "vllm._moe_C": _KERNELS,
    "vllm.vllm_flash_attn._vllm_fa2_C": _KERNELS,
    "vllm.vllm_flash_attn._vllm_fa3_C": _KERNELS,
}
"""Module -> why nothing is lost without it."""

LEFT_OUT: Mapping[str, str] = {
    "openai": _HTTP,
    "vllm.env_override": "settings of the compiler, for processes that the engine starts",
    "vllm.compilation.passes.pass_manager": "passes of the compiler; nothing is compiled",
    "vllm.models": "models; one layer is driven",
    "vllm.parser": _ANSWERS,
    "vllm.tool_parsers": _ANSWERS,
    "vllm.reasoning": _ANSWERS,
}
"""Module that is not imported even where it is there -> why nothing is lost."""


def interpreted(numba: types.ModuleType) -> None:
    """What modules read of numba: a function that would be compiled stays the function."""
    vars(numba).update(
        jit=_as_it_is, njit=_as_it_is, prange=range, get_num_threads=lambda: 1,
        set_num_threads=lambda count: None,
    )  # fmt: skip


def _as_it_is(*functions: Callable[..., Any], **_: Any) -> Any:
    """In place of `@jit` and `@jit(...)`."""
    return functions[0] if functions else _as_it_is
